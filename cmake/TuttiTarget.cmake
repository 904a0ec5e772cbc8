# The flags that every target of the project shares.
add_library(tutti_flags INTERFACE)
target_compile_options(tutti_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor)
# Another project's compiler may have more warnings than ours.
if(PROJECT_IS_TOP_LEVEL)
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
