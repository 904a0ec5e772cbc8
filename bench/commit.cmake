# cmake -DSOURCE=folder -DHEADER=file -P commit.cmake: writes the checkout's commit into a header, if it has changed.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --exclude=* OUTPUT_VARIABLE commit
  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit "unknown")
endif()
file(CONFIGURE OUTPUT ${HEADER} CONTENT [[
#pragma once

namespace tutti::bench {

inline constexpr const char* commit = "@commit@";

}  // namespace tutti::bench
]] @ONLY)
