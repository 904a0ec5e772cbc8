# The flags that every target of the project shares.
add_library(tutti_flags INTERFACE)
target_compile_options(tutti_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor)
# By default only in tutti itself and with the compiler of CI, because newer ones may have more warnings.
set(tutti_werror OFF)
if(PROJECT_IS_TOP_LEVEL AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  set(tutti_werror ON)
endif()
option(TUTTI_WERROR "A compiler's warning ends the build" ${tutti_werror})
if(TUTTI_WERROR)
  target_compile_options(tutti_flags INTERFACE -Werror)
endif()
if(TUTTI_SANITIZE)
  # A third of the time of -O2 -g and all checks. A null pointer is found by the address sanitizer too. The warning is
  # wrong about instrumented code.
  target_compile_options(tutti_flags INTERFACE -O1 -g1 -fsanitize=${TUTTI_SANITIZE} -fno-sanitize=null,object-size,vptr
                                               -fno-omit-frame-pointer -Wno-maybe-uninitialized)
  if(TUTTI_SANITIZE STREQUAL "thread")
    # LibTorch's headers use fences, which GCC's thread sanitizer does not support.
    target_compile_options(tutti_flags INTERFACE -Wno-tsan)
  endif()
  target_link_options(tutti_flags INTERFACE -fsanitize=${TUTTI_SANITIZE})
endif()
