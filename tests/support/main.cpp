#include <gtest/gtest.h>

#include <cstdlib>

#include "support/rank_program.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (const char* name = std::getenv(tutti::test::program_variable)) return tutti::test::run_rank_program(name);
  return RUN_ALL_TESTS();
}
