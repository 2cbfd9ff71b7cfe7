"""The lab measures and calibrates pairs: evaluation, benchmarks, calibration, and the draft-KV study."""
