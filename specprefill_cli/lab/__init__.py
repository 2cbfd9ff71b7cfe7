"""The lab measures pairs and calibrates them: evaluation, benchmarks, calibration, and the draft-KV study."""
