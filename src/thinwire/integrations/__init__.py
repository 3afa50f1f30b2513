"""Front ends: one line for Accelerate, Lightning, the Trainer of transformers, and Ray Train.

Each module imports its framework; `import thinwire` imports none of them.
"""
