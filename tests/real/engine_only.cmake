# Read by CMake where llama.cpp's own project begins: leave out what its command-line tools share. That is a third of
# the build, and the Python package, which switches it on, does not load it.
set(LLAMA_BUILD_COMMON OFF)
