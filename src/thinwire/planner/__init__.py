"""Will compression pay, with what, and how much: figures of a link, a model and its codecs, and what they predict.

profile, reading  what is known, as a file
measure      how it is measured, of (link, observe, figures)
jobs, timeline, predict  the model: operations by `worlds.modelled`, time by the profile
candidates, choice       what may be recommended, and what is
advice       the answer as people and programs read it
"""
