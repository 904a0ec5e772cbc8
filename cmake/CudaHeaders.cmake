# Finds the headers of CUDA and NCCL: those beside the LibTorch of a pip wheel, which match its version, or the toolkit's.
file(GLOB tutti_wheel_cuda "${LIBTORCH}/../nvidia/cu*/include")
find_path(TUTTI_CUDA_HEADERS cuda_runtime_api.h HINTS ${tutti_wheel_cuda} ENV CUDA_HOME /usr/local/cuda
  PATH_SUFFIXES include)
find_path(TUTTI_NCCL_HEADERS nccl.h HINTS "${LIBTORCH}/../nvidia/nccl/include" ENV NCCL_HOME ${TUTTI_CUDA_HEADERS}
  PATH_SUFFIXES include)
foreach(tutti_headers TUTTI_CUDA_HEADERS TUTTI_NCCL_HEADERS)
  if(NOT ${tutti_headers})
    message(FATAL_ERROR "TUTTI_CUDA is on, but ${tutti_headers} was not found: install the CUDA toolkit and NCCL, or set CUDA_HOME and NCCL_HOME.")
  endif()
endforeach()
