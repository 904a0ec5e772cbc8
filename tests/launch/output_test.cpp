#include "launch/output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>

#include "launch/tutti_process.h"
#include "tutti/core/error.h"

namespace tutti::output_test {
namespace {

using Lines = std::vector<std::string>;

TEST(LineSplitter, JoinsPiecesIntoLines) {
  LineSplitter splitter;
  EXPECT_EQ(splitter.feed("on"), Lines{});
  EXPECT_EQ(splitter.feed("e\ntwo\n\nth"), (Lines{"one", "two", ""}));
  EXPECT_EQ(splitter.finish(), "th");
  EXPECT_EQ(splitter.finish(), std::nullopt);
}

TEST(LineSplitter, HasNothingLeftAfterALineEnd) {
  LineSplitter splitter;
  EXPECT_EQ(splitter.feed("one\n"), Lines{"one"});
  EXPECT_EQ(splitter.finish(), std::nullopt);
}

TEST(LineSplitter, ShowsTextThatIsOverwrittenOnceASecond) {
  LineSplitter splitter;
  const LineSplitter::Clock::time_point start{};
  const auto at = [start](int milliseconds) { return start + std::chrono::milliseconds(milliseconds); };
  EXPECT_EQ(splitter.feed("\r1 of 9", at(0)), Lines{});
  EXPECT_EQ(splitter.feed("\r2 of 9", at(100)), Lines{"1 of 9"});
  EXPECT_EQ(splitter.feed("\r3 of 9\r", at(200)), Lines{});
  EXPECT_EQ(splitter.feed("\r4 of 9", at(1100)), Lines{"3 of 9"});
  EXPECT_EQ(splitter.feed("\r9 of 9\nend", at(1200)), Lines{"9 of 9"});
  EXPECT_EQ(splitter.finish(), "end");
}

TEST(LineSplitter, TakesBothLineEnds) {
  LineSplitter splitter;
  EXPECT_EQ(splitter.feed("one\r\n\r\nthree\r"), (Lines{"one", ""}));
  EXPECT_EQ(splitter.feed("\nfour\n"), (Lines{"three", "four"}));
}

TEST(LineSplitter, CutsEndlessLines) {
  LineSplitter splitter;
  const std::string endless(LineSplitter::max_line + 10, 'x');
  EXPECT_EQ(splitter.feed(endless), Lines{std::string(LineSplitter::max_line, 'x')});
  EXPECT_EQ(splitter.feed("\n"), Lines{std::string(10, 'x')});
}

TEST(LineSplitter, ALineOfTheGreatestLengthIsOneLine) {
  const std::string longest(LineSplitter::max_line, 'x');
  LineSplitter splitter;
  EXPECT_EQ(splitter.feed(longest + "\nnext\n"), (Lines{longest, "next"}));
  EXPECT_EQ(splitter.feed(longest), Lines{});
  EXPECT_EQ(splitter.feed("\nnext\n"), (Lines{longest, "next"}));
  EXPECT_EQ(splitter.feed(longest), Lines{});
  EXPECT_EQ(splitter.feed("y\n"), (Lines{longest, "y"}));
  EXPECT_EQ(splitter.feed(longest), Lines{});
  EXPECT_EQ(splitter.finish(), longest);
}

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    read_end = FileDescriptor(ends[0]);
    write_end = FileDescriptor(ends[1]);
  }
  void write(const std::string& text) const {
    EXPECT_EQ(::write(write_end.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  std::string read() const {
    std::string text(1 << 16, '\0');
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::read(read_end.get(), text.data(), text.size()))));
    return text;
  }
  FileDescriptor read_end;
  FileDescriptor write_end;
};

TEST(Sink, WritesInOrderAndStopsWhenTheReaderIsSlow) {
  const Pipe pipe;
  Sink sink(pipe.write_end.get());
  sink.append(std::string(300'000, 'a') + "end");
  EXPECT_TRUE(sink.is_full());
  std::string received;
  while (sink.has_pending()) {
    for (int i = 0; i < 100; ++i) sink.write_ready();  // more than the pipe holds
    received += pipe.read();
  }
  EXPECT_EQ(received, std::string(300'000, 'a') + "end");
}

TEST(Sink, WritesTheRestAtItsEnd) {
  Pipe pipe;
  { Sink(pipe.write_end.get()).append("rest"); }
  pipe.write_end.reset();
  EXPECT_EQ(pipe.read(), "rest");
}

TEST(Sink, DropsOutputAfterTheReaderHasExited) {
  ::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  pipe.read_end.reset();
  Sink sink(pipe.write_end.get());
  sink.append("lost");
  sink.flush();
  sink.append("lost too");
  EXPECT_FALSE(sink.has_pending());
  ::signal(SIGPIPE, SIG_DFL);
}

TEST(Sink, GoesOnWhenTheDiskHasSpaceAgain) {
  const Pipe pipe;
  const FileDescriptor file(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  Sink sink(file.get());
  sink.append("lost");
  sink.flush();
  ASSERT_NE(::dup2(pipe.write_end.get(), file.get()), -1);
  sink.append("later\n");
  sink.flush();
  EXPECT_EQ(pipe.read(), "\ntutti: output is missing here: No space left on device\nlater\n");
}

TEST(RankOutput, PrefixesAndKeepsTheLastLines) {
  Pipe rank;
  const Pipe shown;
  Sink sink(shown.write_end.get());
  RankOutput output(7, std::nullopt);
  output.add_stream(std::move(rank.read_end), sink);
  for (int i = 0; i < 30; ++i) rank.write("line " + std::to_string(i) + "\n");
  rank.write("half");
  output.finish();
  sink.flush();
  const auto text = shown.read();
  EXPECT_EQ(text.substr(0, 16), "[rank 7] line 0\n");
  EXPECT_NE(text.find("[rank 7] line 29\n[rank 7] half\n"), std::string::npos) << text;
  ASSERT_EQ(output.tail().size(), RankOutput::tail_lines);
  EXPECT_EQ(output.tail().front(), "line 11");
  EXPECT_EQ(output.tail().back(), "half");
}

TEST(RankOutput, DetectsTheEndOfItsStreams) {
  Pipe rank;
  Sink sink(STDOUT_FILENO);
  RankOutput output(0, std::nullopt);
  output.add_stream(std::move(rank.read_end), sink);
  auto& stream = output.streams().front();
  EXPECT_FALSE(output.read_piece(stream));
  EXPECT_TRUE(output.is_open());
  rank.write_end.reset();
  EXPECT_FALSE(output.read_piece(stream));
  EXPECT_FALSE(output.is_open());
}

// A process that has escaped from the rank's process group may write for ever.
TEST(RankOutput, ReadsAtMostAFullPipeAtTheEnd) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "endless";
  std::ofstream(path) << std::string(3 * RankOutput::max_rest, '\n');
  const FileDescriptor null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  Sink sink(null.get());
  RankOutput output(0, std::nullopt);
  output.add_stream(FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), sink);
  output.finish();
  ASSERT_TRUE(output.is_open());
  EXPECT_EQ(::lseek(output.streams().front().pipe.get(), 0, SEEK_CUR), RankOutput::max_rest);
}

TEST(RankOutput, BeginsANewLineInTheLogOfAnEarlierAttempt) {
  const test::TemporaryFolder folder;
  const auto log = folder.path() / "rank_3.log";
  std::ofstream(log) << "torn";
  { const RankOutput second(3, folder.path(), "second"); }
  { const RankOutput third(3, folder.path(), "third"); }
  EXPECT_EQ(test::content_of(log), "torn\nsecond\nthird\n");
  { const RankOutput fresh(3, folder.path()); }
  EXPECT_EQ(test::content_of(log), "");
}

TEST(RankOutput, RefusesALogThatCannotBeWritten) {
  EXPECT_THROW(RankOutput(0, "/proc/nowhere"), UsageError);
}

}  // namespace
}  // namespace tutti::output_test
