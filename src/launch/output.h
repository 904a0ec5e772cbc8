#pragma once
// The output of a rank: bytes -> lines -> the launcher's output with a prefix, a log file, and the last lines for the
// report. No call blocks while the launcher supervises ranks, except Sink::flush().
#include <chrono>
#include <cstddef>
#include <deque>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/file_descriptor.h"

namespace tutti {

/// Splits a stream of bytes into lines.
class LineSplitter {
 public:
  using Clock = std::chrono::steady_clock;

  /// Returns the lines that `bytes` completes, without line ends. Splits lines longer than max_line. Text that '\r'
  /// overwrites, as a progress bar does, is a line too, at most once in overwritten_interval.
  std::vector<std::string> feed(std::string_view bytes, Clock::time_point now = Clock::now());
  /// Returns the text after the last line end.
  std::optional<std::string> finish();

  static constexpr std::size_t max_line = std::size_t{64} * 1024;
  static constexpr std::chrono::seconds overwritten_interval{1};

 private:
  void overwrite(std::vector<std::string>& lines, Clock::time_point now);

  std::string partial_;
  bool has_returned_ = false;  // '\r' follows partial_: the next text overwrites it, unless the line ends
  std::optional<Clock::time_point> overwritten_at_;  // the last overwritten text that was a line
};

/// The launcher's stdout or stderr. Buffers bytes, because the reader may be slow (a pager). The destructor flushes.
class Sink {
 public:
  explicit Sink(int fd) : fd_(fd) {}
  ~Sink() { flush(); }
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  int fd() const { return fd_; }
  void append(std::string_view bytes);
  bool has_pending() const { return !pending_.empty(); }
  /// True if the launcher must not read more output of ranks until the reader has caught up.
  bool is_full() const { return pending_.size() > capacity; }
  /// Writes without blocking. Call it when fd() is writable.
  void write_ready();
  /// Writes all bytes; blocks until the reader has taken them.
  void flush();

 private:
  static constexpr std::size_t capacity = std::size_t{256} * 1024;

  bool write_up_to(std::size_t count);

  int fd_;
  bool broken_ = false;
  int lost_by_ = 0;  // the error that the last bytes were lost by, if later ones may be written
  std::string pending_;
};

/// The output of one rank.
class RankOutput {
 public:
  static constexpr std::size_t tail_lines = 20;
  static constexpr std::size_t max_rest = std::size_t{1} << 20;  ///< the largest pipe of an unprivileged process

  struct Stream {
    FileDescriptor pipe;  ///< non-blocking; closed when the writers have exited
    Sink* sink = nullptr;
    LineSplitter lines;
  };

  /// Opens LOG_DIR/rank_R.log if a folder is given. With a `headline`, appends it to the log of the earlier attempt;
  /// without one, truncates the file. Throws UsageError if the file cannot be written.
  RankOutput(int rank, const std::optional<std::filesystem::path>& log_dir, const std::string& headline = "");

  /// The output of a host instead of a rank. Lines for which `takes` returns true are not shown.
  RankOutput(std::string prefix, std::function<bool(const std::string&)> takes)
      : prefix_(std::move(prefix)), takes_(std::move(takes)) {}

  void add_stream(FileDescriptor pipe, Sink& sink) { streams_.push_back({std::move(pipe), &sink, {}}); }
  std::vector<Stream>& streams() { return streams_; }
  bool is_open() const;

  /// Reads a part of the pipe's content. Returns false if the pipe is empty or has ended.
  bool read_piece(Stream& stream);
  /// Reads the remaining content of the pipes, at most max_rest bytes of each because a process that a rank left behind
  /// may still write. Shows unfinished lines.
  void finish();

  /// The last lines, without those of backtraces.
  const std::deque<std::string>& tail() const { return tail_; }

 private:
  static constexpr std::size_t piece_size = std::size_t{16} * 1024;

  void show(Stream& stream, const std::string& line);
  void log(std::string_view bytes);

  std::string prefix_;
  std::function<bool(const std::string&)> takes_;
  std::filesystem::path log_path_;
  FileDescriptor log_;
  bool log_has_gap_ = false;
  std::vector<Stream> streams_;
  std::deque<std::string> tail_;
};

}  // namespace tutti
