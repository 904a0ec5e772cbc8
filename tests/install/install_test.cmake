# Installs the build in BUILD into PREFIX, which later tests use, and runs the installed commands.
include(${CMAKE_CURRENT_LIST_DIR}/support.cmake)
# Files of the build must not hide a file that the installation lacks.
unset(ENV{LIBTORCH})
unset(ENV{LD_LIBRARY_PATH})

file(REMOVE_RECURSE ${PREFIX} ${SCRATCH})
must_run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX})
set(tutti ${PREFIX}/bin/tutti)

must_run(${tutti} --help)
must_say("launch .*env .*report ")
if(output MATCHES "bench")
  message(FATAL_ERROR "the help names benchmarks, which are not installed:\n${output}")
endif()
must_fail("the benchmarks are not installed" ${tutti} bench sync)

# A build without the component exported lacks tutti-export-check, as a copy of the command alone does.
file(COPY ${tutti} DESTINATION ${SCRATCH}/alone)
must_fail("built without export-check: build and install it with -DTUTTI_EXPORTED=ON" ${SCRATCH}/alone/tutti export-check model.pt2)
must_run(${SCRATCH}/alone/tutti --help)
if(output MATCHES "export-check")
  message(FATAL_ERROR "the help names export-check, which is not installed:\n${output}")
endif()

must_run(${tutti} env)
must_say("LibTorch +${LIBTORCH_VERSION}\\.")
must_run(${CMAKE_COMMAND} -E env LIBTORCH=${LIBTORCH} ${tutti} env)
make_other_libtorch(${SCRATCH}/other)
must_fail("built for LibTorch ${LIBTORCH_VERSION}, but [^ ]*/other holds 9.1"
  ${CMAKE_COMMAND} -E env LIBTORCH=${SCRATCH}/other ${tutti} env)
must_fail("needs LibTorch ${LIBTORCH_VERSION}, and there is none in [^ ]*/nowhere"
  ${CMAKE_COMMAND} -E env LIBTORCH=${SCRATCH}/nowhere ${tutti} env)

must_run(${tutti} plan --nodes 2 --link 1gbit --gradients 10MB --forward-ms 10 --backward-ms 20 --optimizer-ms 1)
must_say("1gbit \\| ")

must_run(${tutti} launch -n 2 -- sh -c "echo rank $RANK of $WORLD_SIZE")
must_say("rank 0 of 2")
must_say("rank 1 of 2")

file(WRITE ${SCRATCH}/run/metrics.jsonl [[
{"event":"start","time":1795250000.1,"run":"first","step":0,"hyperparameters":{}}
{"event":"scalars","time":1795250002.0,"step":1,"values":{"loss":2.5}}
]])
must_run(${tutti} report ${SCRATCH}/run)
must_say("The report is in ")
if(NOT EXISTS ${SCRATCH}/run/report.html)
  message(FATAL_ERROR "tutti report wrote no page:\n${output}")
endif()

must_run(${CMAKE_COMMAND} -E cat ${PREFIX}/share/doc/tutti/VERSION)
must_say("built for LibTorch ${LIBTORCH_VERSION}\\.")
if(NOT EXISTS ${PREFIX}/share/doc/tutti/LICENSE)
  message(FATAL_ERROR "the licence is not installed")
endif()
file(REMOVE_RECURSE ${SCRATCH})
