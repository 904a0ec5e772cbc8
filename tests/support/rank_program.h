#pragma once
// The interface between support/main.cpp and the starting process.
#include <string>

namespace tutti::test {

/// Names the program to run instead of the tests.
inline constexpr const char* program_variable = "TUTTI_TEST_RANK_PROGRAM";

/// Runs the program `name` and returns its exit code.
int run_rank_program(const std::string& name);

}  // namespace tutti::test
