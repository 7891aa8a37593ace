"""Configuration: what a file, the environment and the flags may say, and how it is read."""
