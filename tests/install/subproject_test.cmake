# A project with tutti as a subproject. Compares the project's settings at configuration, and builds tutti's launcher and
# the consumer's source. With FULL it builds everything, which takes minutes, and runs the consumer on two ranks;
# FetchContent then gets tutti from TUTTI_GIT and TUTTI_GIT_TAG.
include(${CMAKE_CURRENT_LIST_DIR}/support.cmake)
get_filename_component(source ${CMAKE_CURRENT_LIST_DIR}/../.. ABSOLUTE)
set(parent ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/subproject ${tools} -DTUTTI_SOURCE=${source}
  -DTUTTI_GIT=${TUTTI_GIT} -DTUTTI_GIT_TAG=${TUTTI_GIT_TAG})

file(REMOVE_RECURSE ${SCRATCH})
must_fail("There is no LibTorch in '[^ ]*/nowhere'. Set LIBTORCH"
  ${parent} -B ${SCRATCH}/without -DLIBTORCH=${SCRATCH}/nowhere)
must_run(${parent} -B ${SCRATCH}/build -DLIBTORCH=${LIBTORCH})
# The other project's packages stay its own, also where it installs tutti.
must_run(${parent} -B ${SCRATCH}/installed -DLIBTORCH=${LIBTORCH} -DTUTTI_INSTALL=ON)
if(EXISTS ${SCRATCH}/installed/CPackConfig.cmake)
  message(FATAL_ERROR "tutti wrote the other project's CPackConfig.cmake")
endif()
set(build ${CMAKE_COMMAND} --build ${SCRATCH}/build)
set(commands ${SCRATCH}/build/_deps/tutti-build/bin)
if(FULL)
  must_run(${build})
  must_run(${commands}/tutti launch -n 2 -- ${SCRATCH}/build/consumer)
  must_say("consumer: 2 ranks, loss [0-9]")
  message("${output}")
  must_run(${SCRATCH}/build/consumer_exported ${SCRATCH}/missing.pt2)
  must_say("consumer: cannot read ")
else()
  must_run(${build} --target tutti_command tutti_rank consumer_training)
  must_run(${commands}/tutti launch -n 2 -- sh -c "echo rank $RANK of $WORLD_SIZE")
  must_say("rank 1 of 2")
endif()
# The subproject's programs stay in its folder.
if(EXISTS ${SCRATCH}/build/bin)
  message(FATAL_ERROR "tutti put programs into the other project's folder")
endif()
file(REMOVE_RECURSE ${SCRATCH})
