# Functions for the tests of this folder. A consumer is configured with the tools of the build, because CMake's default
# generator needs make, which may be missing. COMPONENTS are the components of the build.
set(tools -G ${GENERATOR} -DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM} -DCMAKE_CXX_COMPILER=${COMPILER}
  -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER} -DCMAKE_BUILD_TYPE=Release -DTUTTI_COMPONENTS=${COMPONENTS})

# stop(WHAT OUTPUT): fails with a message. CMake does not rewrap indented lines.
function(stop what output)
  string(REPLACE "\n" "\n  " output "${output}")
  message(FATAL_ERROR "${what}\n  ${output}")
endfunction()

function(must_run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " command)
    stop("${command}: ${code}" "${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# must_fail(WORDS command...): the command fails with an error that matches the regular expression WORDS, across line breaks.
function(must_fail words)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " line "${output}")
  if(code EQUAL 0 OR NOT line MATCHES "${words}")
    list(JOIN ARGN " " command)
    stop("${command}: ${code}, where an error with '${words}' was expected" "${output}")
  endif()
endfunction()

function(must_say words)
  if(NOT output MATCHES "${words}")
    stop("'${words}' is not in:" "${output}")
  endif()
endfunction()

# A folder with the version header of LibTorch 9.1, for which no tutti is built.
function(make_other_libtorch folder)
  file(WRITE ${folder}/lib/libtorch_cpu.so "")
  file(WRITE ${folder}/include/torch/headeronly/version.h
    "#define TORCH_VERSION_MAJOR 9\n#define TORCH_VERSION_MINOR 1\n#define TORCH_VERSION_PATCH 0\n")
endfunction()
