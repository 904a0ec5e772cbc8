# Defines the imported target LibTorch::LibTorch from the folder in LIBTORCH (a wheel's `torch` folder or an unpacked
# LibTorch: include/ and lib/ below it). find_package(Torch) is not used because it stops on a machine without the
# CUDA toolkit, which nothing here needs.
set(LIBTORCH "$ENV{LIBTORCH}" CACHE PATH "LibTorch's folder: the one that holds include/ and lib/")
if(NOT EXISTS "${LIBTORCH}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "No LibTorch in '${LIBTORCH}'. Run ./dev build, which fetches one, or set LIBTORCH=/path.")
endif()

set(tutti_torch_version_header "${LIBTORCH}/include/torch/headeronly/version.h")
if(NOT EXISTS "${tutti_torch_version_header}")
  message(FATAL_ERROR "LibTorch in ${LIBTORCH} is too old (tutti needs 2.11 or later) or lacks its headers.")
endif()
file(STRINGS "${tutti_torch_version_header}" tutti_torch_version_lines REGEX "TORCH_VERSION_(MAJOR|MINOR) ")
string(REGEX REPLACE ".*MAJOR ([0-9]+).*" "\\1" tutti_torch_major "${tutti_torch_version_lines}")
string(REGEX REPLACE ".*MINOR ([0-9]+).*" "\\1" tutti_torch_minor "${tutti_torch_version_lines}")
set(TUTTI_LIBTORCH_VERSION "${tutti_torch_major}.${tutti_torch_minor}")
if(TUTTI_LIBTORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "LibTorch ${TUTTI_LIBTORCH_VERSION} in ${LIBTORCH} is too old: tutti needs 2.11 or later.")
endif()
message(STATUS "LibTorch ${TUTTI_LIBTORCH_VERSION}: ${LIBTORCH}")

add_library(LibTorch::c10 SHARED IMPORTED)
set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION "${LIBTORCH}/lib/libc10.so")
add_library(LibTorch::LibTorch SHARED IMPORTED)
set_target_properties(LibTorch::LibTorch PROPERTIES
  IMPORTED_LOCATION "${LIBTORCH}/lib/libtorch_cpu.so"
  INTERFACE_LINK_LIBRARIES LibTorch::c10)
# A program that uses CUDA must be linked to it from the start: LibTorch looks for it once. Nothing in a program names a
# symbol of it, which is why it is linked whole.
if(TUTTI_CUDA)
  if(NOT EXISTS "${LIBTORCH}/lib/libtorch_cuda.so")
    message(FATAL_ERROR "TUTTI_CUDA is on, but LibTorch in ${LIBTORCH} was built without CUDA (no libtorch_cuda.so).")
  endif()
  target_link_options(LibTorch::LibTorch INTERFACE
    "LINKER:--push-state,--no-as-needed,${LIBTORCH}/lib/libc10_cuda.so,${LIBTORCH}/lib/libtorch_cuda.so,--pop-state")
endif()
target_include_directories(LibTorch::LibTorch SYSTEM INTERFACE
  "${LIBTORCH}/include" "${LIBTORCH}/include/torch/csrc/api/include")
target_compile_definitions(LibTorch::LibTorch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
