# `./dev package`: the files of cmake --install as a tar.gz and a .deb. The names of both include the LibTorch version.
set(CPACK_GENERATOR TGZ DEB)
set(CPACK_PACKAGE_NAME tutti)
set(CPACK_PACKAGE_VENDOR "the tutti authors")
set(CPACK_PACKAGE_CONTACT "the tutti authors")
set(CPACK_PACKAGE_VERSION "${PROJECT_VERSION}+libtorch${TUTTI_LIBTORCH_VERSION}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Data-parallel training for C++, for LibTorch ${TUTTI_LIBTORCH_VERSION}")
set(CPACK_PACKAGE_DESCRIPTION
  "Library, headers, commands and CMake package of tutti.
Built for LibTorch ${TUTTI_LIBTORCH_RELEASE}, which it does not contain: LIBTORCH names its folder, for example that of a
Python which can import torch. find_package(tutti) and `tutti env` refuse a LibTorch that is not ${TUTTI_LIBTORCH_VERSION}.")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_CHECKSUM SHA256)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_FILE_NAME "tutti-${CPACK_PACKAGE_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
# The commands need the C++ library of the compiler that built them. Programs that link tutti need a compiler anyway.
string(REGEX MATCH "^[0-9]+" tutti_compiler_major "${CMAKE_CXX_COMPILER_VERSION}")
# libssl-dev depends on the libcrypto package that the commands need, and has the files that programs link.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6, libstdc++6 (>= ${tutti_compiler_major}), libssl-dev")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "cmake, g++, python3")
include(CPack)
