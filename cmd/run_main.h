#pragma once
// What the programs behind `tutti` do with errors.
#include <exception>
#include <iostream>

#include "tutti/core/error.h"

namespace tutti {

inline constexpr int usage_exit_code = 2;

/// Returns the exit code of `run`. What it throws goes to standard error: 2 for a wrong call, 1 for anything else.
template <typename Run>
int run_main(const Run& run) {
  try {
    return run();
  } catch (const UsageError& error) {
    std::cerr << "tutti: " << error.what() << '\n';
    return usage_exit_code;
  } catch (const std::exception& error) {
    std::cerr << "tutti: " << error.what() << '\n';
    return 1;
  }
}

}  // namespace tutti
