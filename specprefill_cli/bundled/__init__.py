"""The pair `tiny` that ships with the package: weights, model card, and the recipe that made them."""
