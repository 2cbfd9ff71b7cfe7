"""What measures and makes models: evaluation, benchmarks, calibration, the draft-KV study."""
