# Installs the build in BUILD below SCRATCH, builds the consumer in SOURCE against it, and runs it on two ranks.
# It is built with the tools of that build: CMake's default generator asks for make, which need not be here.
set(tools -G ${GENERATOR} -DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM} -DCMAKE_CXX_COMPILER=${COMPILER}
  -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})

function(must_run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}: ${code}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${SCRATCH})
must_run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/prefix)
must_run(${CMAKE_COMMAND} -S ${SOURCE} -B ${SCRATCH}/build ${tools} -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix
  -DCMAKE_BUILD_TYPE=Release)
must_run(${CMAKE_COMMAND} --build ${SCRATCH}/build)
must_run(${SCRATCH}/prefix/bin/tutti launch -n 2 -- ${SCRATCH}/build/consumer)
if(NOT output MATCHES "consumer: 2 ranks, loss [0-9]")
  message(FATAL_ERROR "the consumer said: ${output}")
endif()
# Another version is refused.
file(WRITE ${SCRATCH}/newer/CMakeLists.txt
  "cmake_minimum_required(VERSION 3.25)\nproject(newer LANGUAGES CXX)\nfind_package(tutti 0.2 REQUIRED)\n")
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SCRATCH}/newer -B ${SCRATCH}/newer/build ${tools}
  -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
# For that reason, and not because something else is missing.
if(code EQUAL 0 OR NOT output MATCHES "version: 0\\.1")
  message(FATAL_ERROR "find_package(tutti 0.2) ended with ${code} and said: ${output}")
endif()
file(REMOVE_RECURSE ${SCRATCH})
