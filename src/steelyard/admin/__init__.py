"""The admin listener: health, metrics, and the API that shows and steers a running gateway."""
