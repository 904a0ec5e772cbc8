# tutti without the component exported: the rest is configured, and no command of the build uses a part of the component.
# The build is not run.
include(${CMAKE_CURRENT_LIST_DIR}/support.cmake)
if(NOT GENERATOR STREQUAL "Ninja")
  message("skipped: ${GENERATOR} does not list the commands of a build as Ninja does")
  return()
endif()
get_filename_component(source ${CMAKE_CURRENT_LIST_DIR}/../.. ABSOLUTE)

# CMake fails here if a target lacks a source file.
file(REMOVE_RECURSE ${SCRATCH})
must_run(${CMAKE_COMMAND} -S ${source} -B ${SCRATCH}/build ${tools} -DLIBTORCH=${LIBTORCH} -DTUTTI_EXPORTED=OFF)
must_run(${MAKE_PROGRAM} -C ${SCRATCH}/build -t commands all)
foreach(part tutti-bench test_fuzz test_examples document_snippets libtutti.a)
  must_say(${part})
endforeach()
if(output MATCHES "tutti_exported|module_exported|export_check|test_exported|guide_exported")
  stop("the build without the component exported uses ${CMAKE_MATCH_0}:" "${output}")
endif()

# The package of this build names the missing component.
set(package ${SCRATCH}/prefix/lib/cmake/tutti)
file(COPY ${SCRATCH}/build/tuttiConfig.cmake ${SCRATCH}/build/tuttiConfigVersion.cmake ${source}/cmake/LibTorch.cmake
  DESTINATION ${package})
must_fail("built without the component exported .* install tutti with -DTUTTI_EXPORTED=ON"
  ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer ${tools} -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix
  -DTUTTI_COMPONENTS=exported -B ${SCRATCH}/consumer)
file(REMOVE_RECURSE ${SCRATCH})
