# Python and C++ use the LibTorch of one Python that can `import torch`. Builds the consumer with it against the
# installation in PREFIX, as a program and as a library that this Python loads. TUTTI_PEERS_PYTHON names that Python.
include(${CMAKE_CURRENT_LIST_DIR}/support.cmake)
set(python "$ENV{TUTTI_PEERS_PYTHON}")
if(NOT python)
  message("skipped: set TUTTI_PEERS_PYTHON to a Python that can import torch ${LIBTORCH_VERSION}, such as tools/peers.sh makes (5 GB)")
  return()
endif()
must_run(${python} -c "import torch\nprint('torch', torch.__version__, torch.__path__[0])")
must_say("(^|\n)torch ([0-9]+\\.[0-9]+)[^ \n]* ([^\n]+)\n")
string(REGEX MATCH "(^|\n)torch ([0-9]+\\.[0-9]+)[^ \n]* ([^\n]+)\n" found "${output}")
set(version ${CMAKE_MATCH_2})
set(torch ${CMAKE_MATCH_3})
if(NOT version STREQUAL LIBTORCH_VERSION)
  message("skipped: ${python} has torch ${version}, this build is for ${LIBTORCH_VERSION}")
  return()
endif()

file(REMOVE_RECURSE ${SCRATCH})
must_run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${SCRATCH}/build ${tools}
  -DCMAKE_PREFIX_PATH=${PREFIX} -DLIBTORCH=${torch})
must_run(${CMAKE_COMMAND} --build ${SCRATCH}/build --target consumer consumer_module)
must_run(${python} ${CMAKE_CURRENT_LIST_DIR}/consumer/one_libtorch.py ${SCRATCH}/build/libconsumer_module.so
  ${SCRATCH}/build/consumer)
must_say("one LibTorch ${LIBTORCH_VERSION}")
message("${output}")
file(REMOVE_RECURSE ${SCRATCH})
