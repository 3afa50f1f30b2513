"""Models, data and training that the demo, the comparisons, the tests of convergence and the benchmarks share."""

from thinwire_lab.recipes.data import Data, Images, Text, load_images, load_text
from thinwire_lab.recipes.errors import RecipeError
from thinwire_lab.recipes.evaluation import Evaluation, evaluate
from thinwire_lab.recipes.models import MODELS, build_model
from thinwire_lab.recipes.place import joined_world
from thinwire_lab.recipes.recipe import RECIPES, Batches, Recipe, learning_rate, load_data
from thinwire_lab.recipes.records import read_records
from thinwire_lab.recipes.simulated import RecordedStep, SimulatedRun, mean, record_gradients, train_simulated
from thinwire_lab.recipes.training import TrainedModel, train

__all__ = [
    "MODELS",
    "RECIPES",
    "Batches",
    "Data",
    "Evaluation",
    "Images",
    "Recipe",
    "RecipeError",
    "RecordedStep",
    "SimulatedRun",
    "Text",
    "TrainedModel",
    "build_model",
    "evaluate",
    "joined_world",
    "learning_rate",
    "load_data",
    "load_images",
    "load_text",
    "mean",
    "read_records",
    "record_gradients",
    "train",
    "train_simulated",
]
