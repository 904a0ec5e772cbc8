#include "tracking/event_messages.h"

#include <gtest/gtest.h>

namespace tutti::event_messages_test {
namespace {

using namespace std::string_literals;

// The expected bytes come from TensorBoard's messages and record writer.

TEST(EventRecord, FramesBytesWithMaskedChecksums) {
  EXPECT_EQ(event_record("abc"),
            "\x03\x00\x00\x00\x00\x00\x00\x00\xB0\x99\x49\x0E"
            "abc"
            "\x6E\x57\xF1\x21"s);
}

TEST(EventMessages, BeginWithTheFormatsVersion) {
  EXPECT_EQ(file_version_event(1.0),
            "\x09\x00\x00\x00\x00\x00\x00\xF0\x3F\x1A\x0D"
            "brain.Event:2"s);
}

TEST(EventMessages, NameTheFirstStepOfAResumedRun) {
  EXPECT_EQ(session_start_event(1.0, 5), "\x09\x00\x00\x00\x00\x00\x00\xF0\x3F\x10\x05\x3A\x02\x08\x01"s);
}

TEST(EventMessages, HoldAllScalarsOfAStep) {
  EXPECT_EQ(scalars_event(1.0, 300, {{"a", 1.5}, {"bc", -2.0}}),
            "\x09\x00\x00\x00\x00\x00\x00\xF0\x3F\x10\xAC\x02\x2A\x15"
            "\x0A\x08\x0A\x01"
            "a\x15\x00\x00\xC0\x3F"
            "\x0A\x09\x0A\x02"
            "bc\x15\x00\x00\x00\xC0"s);
}

// Readers refuse a message whose texts are not UTF-8.
TEST(EventMessages, ReplaceBytesThatAreNotUtf8) {
  const std::string wrong = "caf\xE9";
  const std::string replaced = "caf\uFFFD";
  EXPECT_EQ(scalars_event(1, 1, {{wrong, 1.5}}), scalars_event(1, 1, {{replaced, 1.5}}));
  EXPECT_EQ(text_event(1, 1, wrong, wrong), text_event(1, 1, replaced, replaced));
  EXPECT_EQ(hyperparameters_event(1, 1, {{wrong, wrong}}), hyperparameters_event(1, 1, {{replaced, replaced}}));
}

TEST(HyperparametersTable, KeepsCellsApart) {
  EXPECT_EQ(hyperparameters_table("run", {{"a|b", std::string("x\ny\\")}, {"flag", true}, {"n", std::int64_t{3}}}),
            "| run | |\n|---|---|\n| a\\|b | x y\\\\ |\n| flag | true |\n| n | 3 |\n");
}

}  // namespace
}  // namespace tutti::event_messages_test
