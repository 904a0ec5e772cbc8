// Ranks: none. The order and the removal of frames that wait to be sent.
#include "comm/transport/tcp/outbox.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace tutti::test::outbox_test {
namespace {

using namespace tutti::comm;
using FrameKind = FrameHeader::Kind;

struct Send final : Message {
  std::string text;
  void complete(const Outcome&) override {}
};

std::shared_ptr<Send> send(const std::string& text, std::uint64_t eager_bytes = max_eager_bytes) {
  auto message = std::make_shared<Send>();
  message->is_send = true;
  message->text = text;
  message->memory = std::as_writable_bytes(std::span(message->text));
  message->eager_bytes = eager_bytes;
  return message;
}

class OutboxTest : public testing::Test {
 protected:
  /// Writes up to `limit` bytes.
  void write(std::size_t limit) {
    std::size_t count = 0;
    for (const iovec& part : outbox.begin_write()) {
      const auto length = std::min(part.iov_len, limit - count);
      sent.append(static_cast<const char*>(part.iov_base), length);
      count += length;
    }
    outbox.end_write(count, effects);
  }
  void write_all() {
    while (!outbox.is_empty()) write(7);
  }
  struct Frame {
    FrameHeader header;
    std::string bytes;
  };
  /// The frames in what was sent.
  std::vector<Frame> frames() const {
    std::vector<Frame> all;
    for (std::size_t at = 0; at < sent.size();) {
      Frame frame;
      std::memcpy(&frame.header, sent.data() + at, sizeof(frame.header));
      EXPECT_TRUE(frame.header.is_valid());
      at += sizeof(frame.header);
      frame.bytes = sent.substr(at, frame.header.bytes_behind());
      at += frame.bytes.size();
      all.push_back(frame);
    }
    return all;
  }

  Outbox outbox;
  Effects effects;
  std::string sent;
};

TEST_F(OutboxTest, SendsInOrderWhateverTheSocketTakes) {
  for (const auto* text : {"one", "", "three"}) outbox.add(send(text));
  write_all();
  ASSERT_EQ(frames().size(), 3U);
  EXPECT_EQ(frames()[0].bytes, "one");
  EXPECT_EQ(frames()[1].bytes, "");
  EXPECT_EQ(frames()[2].bytes, "three");
  EXPECT_EQ(effects.completions.size(), 3U);
}

TEST_F(OutboxTest, AnUrgentFrameOvertakesWhatHasNotBegun) {
  outbox.add(send("begun"));
  outbox.add(send("waits"));
  write(3);
  outbox.add_urgent({.kind = FrameKind::pull, .id = 1});
  write_all();
  ASSERT_EQ(frames().size(), 3U);
  EXPECT_EQ(frames()[0].bytes, "begun");
  EXPECT_EQ(frames()[1].header.kind, FrameKind::pull);
  EXPECT_EQ(frames()[2].bytes, "waits");
}

TEST_F(OutboxTest, AnUrgentFrameDoesNotDisturbAWriteInProgress) {
  outbox.add(send("writes"));
  const auto parts = outbox.begin_write();
  outbox.add_urgent({.kind = FrameKind::pull, .id = 1});
  for (const iovec& part : parts) sent.append(static_cast<const char*>(part.iov_base), part.iov_len);
  outbox.end_write(sent.size(), effects);
  write_all();
  ASSERT_EQ(frames().size(), 2U);
  EXPECT_EQ(frames()[0].bytes, "writes");
}

TEST_F(OutboxTest, ARemovedMessageGivesItsMemoryBack) {
  const auto begun = send("begun message");
  const auto waits = send("waits");
  outbox.add(begun);
  outbox.add(waits);
  write(sizeof(FrameHeader) + 3);
  EXPECT_EQ(outbox.remove(*waits), Removal::removed);
  EXPECT_EQ(outbox.remove(*waits), Removal::absent);
  EXPECT_EQ(outbox.remove(*begun), Removal::removed);
  begun->text.assign(begun->text.size(), '-');
  EXPECT_FALSE(outbox.is_empty());
  EXPECT_FALSE(outbox.has_messages());
  write_all();
  ASSERT_EQ(frames().size(), 1U);
  EXPECT_EQ(frames()[0].bytes, "begun message");
  EXPECT_TRUE(effects.completions.empty());
}

TEST_F(OutboxTest, AMessageIsNotRemovedDuringItsWrite) {
  const auto message = send("text");
  outbox.add(message);
  const auto parts = outbox.begin_write();
  EXPECT_EQ(outbox.remove(*message), Removal::busy);
  outbox.end_write(0, effects);
  EXPECT_EQ(outbox.remove(*message), Removal::removed);
  EXPECT_TRUE(outbox.is_empty());
}

TEST_F(OutboxTest, ALongMessageIsAnnouncedAndDoesNotBlockOthers) {
  outbox.add(send("long", 3));
  outbox.add(send("abc", 3));
  write_all();
  ASSERT_EQ(frames().size(), 2U);
  EXPECT_EQ(frames()[0].header.kind, FrameKind::announce);
  EXPECT_EQ(frames()[1].bytes, "abc");
  EXPECT_TRUE(outbox.has_messages());
  const auto id = frames()[0].header.id;
  EXPECT_FALSE(outbox.on_pull(id + 1)) << "never announced";
  EXPECT_TRUE(outbox.on_pull(id));
  write_all();
  ASSERT_EQ(frames().size(), 3U);
  EXPECT_EQ(frames()[2].header.kind, FrameKind::payload);
  EXPECT_EQ(frames()[2].bytes, "long");
  EXPECT_FALSE(outbox.has_messages());
}

TEST_F(OutboxTest, AnAnnouncedMessageThatIsRemovedIsWithdrawn) {
  const auto announced = send("long", 3);
  const auto pulled = send("also long", 3);
  outbox.add(announced);
  outbox.add(pulled);
  EXPECT_TRUE(outbox.on_pull(2));
  EXPECT_EQ(outbox.remove(*announced), Removal::removed);
  EXPECT_EQ(outbox.remove(*pulled), Removal::removed);
  EXPECT_TRUE(outbox.on_pull(1)) << "the pull and the withdrawal have crossed";
  write_all();
  int withdrawn = 0;
  for (const auto& frame : frames()) withdrawn += frame.header.kind == FrameKind::withdraw ? 1 : 0;
  EXPECT_EQ(withdrawn, 2);
}

TEST_F(OutboxTest, ARefusedMessageEnds) {
  outbox.add(send("long", 3));
  EXPECT_TRUE(outbox.on_refuse(1, 7, effects));
  ASSERT_EQ(effects.completions.size(), 1U);
  EXPECT_EQ(effects.completions[0].outcome.kind, Outcome::Kind::mismatch);
  EXPECT_FALSE(outbox.on_refuse(2, 7, effects));
}

}  // namespace
}  // namespace tutti::test::outbox_test
