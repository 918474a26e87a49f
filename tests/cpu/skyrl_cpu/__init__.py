"""What lets SkyRL train without a GPU in tests: the folder `site` beside this file, on `PYTHONPATH` of all processes."""
