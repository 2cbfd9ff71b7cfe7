"""The pair `tiny` that ships with the package: weights, calibrations and model card."""
