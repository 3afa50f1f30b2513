"""The known answers of each family of kernels; `known_answers.FAMILIES` lists them."""
