// Ranks: none. The call site in the options of a call.
#include <gtest/gtest.h>

#include "comm/backend/operation.h"
#include "tutti/comm/communicator.h"
#include "tutti/detail/comm/internal_call.h"

namespace tutti::comm::call_options_test {
namespace {

std::string place_of(const CallOptions& call = {}) {
  return call.where.describe();
}

std::string line(int number) {
  return "call_options_test.cpp:" + std::to_string(number);
}

TEST(CallOptions, KnowTheCallersLine) {
  EXPECT_EQ(place_of(), line(__LINE__));
  EXPECT_EQ(place_of({.name = "loss"}), line(__LINE__));
  EXPECT_EQ(place_of({.timeout = std::chrono::seconds(1), .name = "loss"}), line(__LINE__));
}

TEST(CallOptions, OfInternalCallsHaveNoCallSite) {
  EXPECT_EQ(place_of(internal_call("loss")), "");
  EXPECT_EQ(internal_call("loss").name, "loss");
}

TEST(Operation, IsDescribedWithItsPlace) {
  Operation operation{.number = 16, .op_name = "barrier", .name = "epoch"};
  EXPECT_EQ(operation.describe_with_call_site(), operation.describe());
  operation.call_site = {.file = "train.cpp", .line = 42};
  EXPECT_EQ(operation.describe_with_call_site(), "barrier 'epoch' (operation 16, train.cpp:42)");
  EXPECT_EQ(operation.describe(), "barrier 'epoch' (operation 16)");
}

}  // namespace
}  // namespace tutti::comm::call_options_test
