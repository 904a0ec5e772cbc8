# Defines the imported target LibTorch::LibTorch from the folder in LIBTORCH (a wheel's `torch` folder or an unpacked
# LibTorch: include/ and lib/ below it). find_package(Torch) is not used, because it stops on a machine without the CUDA
# toolkit, which tutti does not need. Both tutti's build and find_package(tutti) include this file. So it does not stop
# on an error, but sets tutti_libtorch_problem to the reason why there is no target.
# If LIBTORCH is not set: the environment's LIBTORCH, the one that find_package(Torch) found, or that of tutti's build.
set(tutti_libtorch_words "LibTorch's folder: the one that holds include/ and lib/")
if(LIBTORCH)
  set(LIBTORCH "${LIBTORCH}" CACHE PATH "${tutti_libtorch_words}")
elseif(DEFINED ENV{LIBTORCH})
  set(LIBTORCH "$ENV{LIBTORCH}")
elseif(TORCH_INSTALL_PREFIX)
  set(LIBTORCH "${TORCH_INSTALL_PREFIX}")
else()
  set(LIBTORCH "${tutti_built_with}")
endif()
set(tutti_libtorch_problem "")
set(tutti_torch_version_header "${LIBTORCH}/include/torch/headeronly/version.h")
if(NOT EXISTS "${LIBTORCH}/lib/libtorch_cpu.so")
  set(tutti_libtorch_problem "There is no LibTorch in '${LIBTORCH}'. Set LIBTORCH to its folder, the one that holds include/ and lib/ (that of a Python is told by: python3 -c \"import torch; print(torch.__path__[0])\").")
  return()
endif()
if(NOT EXISTS "${tutti_torch_version_header}")
  set(tutti_libtorch_problem "LibTorch in ${LIBTORCH} is too old (tutti needs 2.11 or later) or lacks its headers.")
  return()
endif()
file(STRINGS "${tutti_torch_version_header}" tutti_torch_version_lines REGEX "TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE ".*MAJOR ([0-9]+).*" "\\1" tutti_torch_major "${tutti_torch_version_lines}")
string(REGEX REPLACE ".*MINOR ([0-9]+).*" "\\1" tutti_torch_minor "${tutti_torch_version_lines}")
string(REGEX REPLACE ".*PATCH ([0-9]+).*" "\\1" tutti_torch_patch "${tutti_torch_version_lines}")
# Programs and libraries must have the same version; the release is for messages.
set(TUTTI_LIBTORCH_VERSION "${tutti_torch_major}.${tutti_torch_minor}")
set(TUTTI_LIBTORCH_RELEASE "${TUTTI_LIBTORCH_VERSION}.${tutti_torch_patch}")
if(TUTTI_LIBTORCH_VERSION VERSION_LESS 2.11)
  set(tutti_libtorch_problem "LibTorch ${TUTTI_LIBTORCH_VERSION} in ${LIBTORCH} is too old: tutti needs 2.11 or later.")
  return()
endif()
if(TUTTI_CUDA AND NOT EXISTS "${LIBTORCH}/lib/libtorch_cuda.so")
  set(tutti_libtorch_problem "TUTTI_CUDA is on, but LibTorch in ${LIBTORCH} was built without CUDA (no libtorch_cuda.so).")
  return()
endif()
# Cached for the next configuration only here, so that a wrong folder is not cached.
set(LIBTORCH "${LIBTORCH}" CACHE PATH "${tutti_libtorch_words}")
if(TARGET LibTorch::LibTorch)
  return()
endif()

# Global, because a project with tutti as a subproject links to it as well.
add_library(LibTorch::c10 SHARED IMPORTED GLOBAL)
set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION "${LIBTORCH}/lib/libc10.so")
add_library(LibTorch::LibTorch SHARED IMPORTED GLOBAL)
set_target_properties(LibTorch::LibTorch PROPERTIES
  IMPORTED_LOCATION "${LIBTORCH}/lib/libtorch_cpu.so"
  INTERFACE_LINK_LIBRARIES LibTorch::c10)
# A program that uses CUDA must load libtorch_cuda at its start, because LibTorch looks for it once. Programs use no
# symbol of it, so --no-as-needed keeps the link.
if(TUTTI_CUDA)
  target_link_options(LibTorch::LibTorch INTERFACE
    "LINKER:--push-state,--no-as-needed,${LIBTORCH}/lib/libc10_cuda.so,${LIBTORCH}/lib/libtorch_cuda.so,--pop-state")
endif()
target_include_directories(LibTorch::LibTorch SYSTEM INTERFACE
  "${LIBTORCH}/include" "${LIBTORCH}/include/torch/csrc/api/include")
target_compile_definitions(LibTorch::LibTorch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
