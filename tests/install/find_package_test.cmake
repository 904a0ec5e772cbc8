# Builds the consumer against the installation in PREFIX and runs it on two ranks.
include(${CMAKE_CURRENT_LIST_DIR}/support.cmake)
# The package uses the LibTorch of its build.
unset(ENV{LIBTORCH})
set(consumer ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer ${tools} -DCMAKE_PREFIX_PATH=${PREFIX})

file(REMOVE_RECURSE ${SCRATCH})
must_run(${consumer} -B ${SCRATCH}/build)
must_run(${CMAKE_COMMAND} --build ${SCRATCH}/build --target consumer)
must_run(${PREFIX}/bin/tutti launch -n 2 -- ${SCRATCH}/build/consumer)
must_say("consumer: 2 ranks, loss [0-9]")

# A program searches tutti's folder for libraries only if the MPI module is there.
file(STRINGS ${PREFIX}/lib/cmake/tutti/tuttiTargets.cmake rpath REGEX "-rpath,[^ ]*/lib")
if(rpath AND NOT EXISTS ${PREFIX}/lib/libtutti_mpi.so)
  message(FATAL_ERROR "a program searches a folder without tutti's libraries first: ${rpath}")
endif()

# The component exported, and a component that does not exist.
if(COMPONENTS)
  must_run(${CMAKE_COMMAND} --build ${SCRATCH}/build --target consumer_exported)
  must_run(${SCRATCH}/build/consumer_exported ${SCRATCH}/missing.pt2)
  must_say("consumer: cannot read [^ ]*/missing.pt2: ")
endif()
must_fail("tutti has no component nonsense. Its only component is exported"
  ${consumer} -B ${SCRATCH}/nonsense -DTUTTI_COMPONENTS=nonsense)

# Another version of tutti and another LibTorch are refused, each with its reason.
must_fail("version: 0\\.1" ${consumer} -B ${SCRATCH}/newer -DTUTTI_VERSION=0.2)
make_other_libtorch(${SCRATCH}/other)
must_fail("built for LibTorch ${LIBTORCH_VERSION} and takes no other. LibTorch in [^ ]*/other is 9.1.0"
  ${consumer} -B ${SCRATCH}/other_build -DLIBTORCH=${SCRATCH}/other)
must_fail("built for LibTorch ${LIBTORCH_VERSION} and takes no other. There is no LibTorch in"
  ${consumer} -B ${SCRATCH}/without -DLIBTORCH=${SCRATCH}/nowhere)
file(REMOVE_RECURSE ${SCRATCH})
