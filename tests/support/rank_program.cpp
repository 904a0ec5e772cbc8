#include "support/rank_program.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <exception>
#include <utility>

#include "support/ranks.h"

namespace tutti::test {
namespace {

// A function's static variable, because programs register themselves before main() in no particular order.
std::map<std::string, std::function<void()>>& programs() {
  static std::map<std::string, std::function<void()>> by_name;
  return by_name;
}

}  // namespace

RankProgram::RankProgram(std::string name, std::function<void()> body) : name_(std::move(name)) {
  if (!programs().emplace(name_, std::move(body)).second) {
    std::fprintf(stderr, "Two rank programs are called '%s'.\n", name_.c_str());
    std::abort();
  }
}

int run_rank_program(const std::string& name) {
  const auto found = programs().find(name);
  if (found == programs().end()) {
    std::fprintf(stderr, "No rank program is called '%s'.\n", name.c_str());
    return 2;
  }
  try {
    found->second();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 1 : 0;
}

}  // namespace tutti::test
