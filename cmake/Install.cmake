# cmake --install puts the libraries, the headers, the commands and a package for find_package(tutti) in place.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(tutti_package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)

install(TARGETS tutti_base tutti_tracking tutti EXPORT tuttiTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET tutti_mpi)
  install(TARGETS tutti_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(EXPORT tuttiTargets NAMESPACE tutti:: DESTINATION ${tutti_package_folder})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/tutti DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS tutti_command tutti_rank tutti_report tutti_env RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/tuttiConfig.cmake.in ${PROJECT_BINARY_DIR}/tuttiConfig.cmake
  INSTALL_DESTINATION ${tutti_package_folder})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tuttiConfig.cmake ${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/LibTorch.cmake DESTINATION ${tutti_package_folder})
