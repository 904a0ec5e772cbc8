# Makes the packages of the build in BUILD and checks that they contain everything that a project needs.
include(${CMAKE_CURRENT_LIST_DIR}/support.cmake)
get_filename_component(cmake_folder ${CMAKE_COMMAND} DIRECTORY)
unset(ENV{LIBTORCH})

file(REMOVE_RECURSE ${SCRATCH})
must_run(${cmake_folder}/cpack --config ${BUILD}/CPackConfig.cmake -B ${SCRATCH})
file(GLOB archive ${SCRATCH}/tutti-*libtorch${LIBTORCH_VERSION}-*.tar.gz)
file(GLOB package ${SCRATCH}/tutti_*libtorch${LIBTORCH_VERSION}_*.deb)
if(NOT archive OR NOT package)
  stop("no tar.gz or no .deb that names LibTorch ${LIBTORCH_VERSION}:" "${output}")
endif()

# The archive works in any folder, and names the LibTorch that it was built for.
file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${SCRATCH}/unpacked)
file(GLOB prefix ${SCRATCH}/unpacked/*)
foreach(part bin/tutti bin/tutti-rank bin/tutti-report bin/tutti-env bin/tutti-plan lib/libtutti.a include/tutti/tutti.h
    share/doc/tutti/LICENSE)
  if(NOT EXISTS ${prefix}/${part})
    message(FATAL_ERROR "${archive} has no ${part}")
  endif()
endforeach()
file(READ ${prefix}/share/doc/tutti/VERSION output)
must_say("built for LibTorch ${LIBTORCH_VERSION}\\.")
must_run(${CMAKE_COMMAND} -E env LIBTORCH=${LIBTORCH} ${prefix}/bin/tutti env)
must_say("LibTorch +${LIBTORCH_VERSION}\\.")
set(consumer ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer ${tools} -DCMAKE_PREFIX_PATH=${prefix})
must_run(${consumer} -B ${SCRATCH}/build -DLIBTORCH=${LIBTORCH})
make_other_libtorch(${SCRATCH}/other)
must_fail("built for LibTorch ${LIBTORCH_VERSION} and takes no other"
  ${consumer} -B ${SCRATCH}/other_build -DLIBTORCH=${SCRATCH}/other)

# The .deb names it in the fields that apt and dpkg show.
find_program(dpkg_deb dpkg-deb)
if(dpkg_deb)
  must_run(${dpkg_deb} --info ${package})
  must_say("Version: [0-9.]+\\+libtorch${LIBTORCH_VERSION}")
  must_say("Built for LibTorch ${LIBTORCH_VERSION}\\.")
  must_run(${dpkg_deb} --contents ${package})
  must_say("/usr/bin/tutti\n.*/usr/include/tutti/tutti.h\n.*/usr/lib/cmake/tutti/tuttiConfig.cmake\n")
else()
  message("There is no dpkg-deb: the .deb was made, but not checked.")
endif()
file(REMOVE_RECURSE ${SCRATCH})
