// Ranks: none. The encoding of wait states.
#include "flight/wait_state_text.h"

#include <gtest/gtest.h>

namespace tutti::flight::wait_state_text_test {
namespace {

TEST(WaitState, SurvivesEncoding) {
  const WaitState state{
      .pending_calls = {{.communicator = "job", .number = 2, .text = "barrier 'it\"s' (operation 2)"}},
      .communicators = {{"job", {.calls = 3, .members = {0, 1}}}, {"model", {.calls = 5, .members = {0, 1}}}},
      .changes = 77};
  const auto read = wait_state_from_text(to_text(state));
  ASSERT_TRUE(read);
  EXPECT_EQ(to_text(*read), to_text(state));
  EXPECT_EQ(read->pending_calls, state.pending_calls);
}

TEST(WaitState, MalformedTextIsRejected) {
  for (const char* text :
       {"", "{}", "[]", R"({"changes":0,"waits":[["other",1,"x"]],"channels":{}})",
        R"({"changes":0,"waits":[["job",-1,7]],"channels":{"job":[1,[0]]}})", "\xff\xfe", "{\"changes\":"}) {
    EXPECT_FALSE(wait_state_from_text(text)) << text;
  }
}

}  // namespace
}  // namespace tutti::flight::wait_state_text_test
