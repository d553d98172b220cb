"""What measures speed and size; ``results`` holds what it measured."""
