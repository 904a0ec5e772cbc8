# cmake --install installs the libraries, the headers, the commands and a package for find_package(tutti).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(tutti_package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
set(tutti_libraries tutti_base tutti_tracking tutti)
set(tutti_commands tutti_command tutti_rank tutti_report tutti_env tutti_plan)
# The commands that load LibTorch.
set(tutti_libtorch_commands tutti_env tutti_plan)
# The components that find_package(tutti COMPONENTS ...) knows; tuttiConfig.cmake reads the ones of this build.
set(tutti_components "")
set(tutti_header_options "")
set(tutti_mpi_rpath "")
if(TUTTI_EXPORTED)
  list(APPEND tutti_libraries tutti_exported)
  list(APPEND tutti_commands tutti_export_check)
  list(APPEND tutti_libtorch_commands tutti_export_check)
  list(APPEND tutti_components exported)
else()
  set(tutti_header_options PATTERN exported EXCLUDE)
endif()
set(tutti_installed ${tutti_libraries} ${tutti_commands})

install(TARGETS ${tutti_libraries} EXPORT tuttiTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET tutti_mpi)
  install(TARGETS tutti_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  list(APPEND tutti_installed tutti_mpi)
  # The folders in which programs find the MPI module: consumers' programs, and the commands that use LibTorch. Not without
  # the module, because another LibTorch may be there.
  target_link_options(tutti INTERFACE $<INSTALL_INTERFACE:LINKER:-rpath,$<INSTALL_PREFIX>/${CMAKE_INSTALL_LIBDIR}>)
  set(tutti_mpi_rpath "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};")
endif()
set_target_properties(${tutti_libtorch_commands} PROPERTIES INSTALL_RPATH "${tutti_mpi_rpath}${LIBTORCH}/lib")
install(EXPORT tuttiTargets NAMESPACE tutti:: DESTINATION ${tutti_package_folder})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/tutti DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} ${tutti_header_options})
install(TARGETS ${tutti_commands} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/tuttiConfig.cmake.in ${PROJECT_BINARY_DIR}/tuttiConfig.cmake
  INSTALL_DESTINATION ${tutti_package_folder})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tuttiConfig.cmake ${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/LibTorch.cmake DESTINATION ${tutti_package_folder})

# Describes the LibTorch, the processor and the compiler of a package.
set(tutti_built_for "tutti ${PROJECT_VERSION}, built for LibTorch ${TUTTI_LIBTORCH_RELEASE}")
if(TUTTI_CUDA)
  string(APPEND tutti_built_for " with CUDA")
endif()
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/VERSION CONTENT
  "${tutti_built_for}\n${CMAKE_SYSTEM_PROCESSOR}, ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}\n")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_BINARY_DIR}/VERSION DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Builds all installed files and nothing else: cmake --build build --target tutti_installation
add_custom_target(tutti_installation DEPENDS ${tutti_installed})
