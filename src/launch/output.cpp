#include "launch/output.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "tutti/core/error.h"

namespace tutti {
namespace {

std::string error_text(int error) {
  return std::generic_category().message(error);
}

/// True for an error that passes when space is released.
bool is_disk_full(int error) {
  return error == ENOSPC || error == EDQUOT;
}

/// True if the next byte begins a line.
bool is_at_line_begin(int fd) {
  const off_t size = ::lseek(fd, 0, SEEK_END);
  char last = '\n';
  return size <= 0 || (::pread(fd, &last, 1, size - 1) == 1 && last == '\n');
}

/// A line of the backtrace that LibTorch appends to an error. There are so many that they would displace the message.
bool is_stack_frame(std::string_view line) {
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  return line.starts_with("frame #");
}

}  // namespace

std::vector<std::string> LineSplitter::feed(std::string_view bytes, Clock::time_point now) {
  std::vector<std::string> lines;
  while (!bytes.empty()) {
    if (has_returned_ && bytes.front() != '\r' && bytes.front() != '\n') overwrite(lines, now);
    const auto capacity = max_line - partial_.size();
    const auto end = bytes.substr(0, capacity + 1).find_first_of("\r\n");
    const auto taken = std::min({end, capacity, bytes.size()});
    partial_ += bytes.substr(0, taken);
    has_returned_ = end != std::string_view::npos && bytes[end] == '\r';
    bytes.remove_prefix(end == std::string_view::npos ? taken : taken + 1);
    if (has_returned_) continue;
    if (end == std::string_view::npos && bytes.empty()) break;
    lines.push_back(std::move(partial_));
    partial_.clear();
  }
  return lines;
}

void LineSplitter::overwrite(std::vector<std::string>& lines, Clock::time_point now) {
  has_returned_ = false;
  const bool shows = !overwritten_at_ || now - *overwritten_at_ >= overwritten_interval;
  if (shows && !partial_.empty()) {
    overwritten_at_ = now;
    lines.push_back(std::move(partial_));
  }
  partial_.clear();
}

std::optional<std::string> LineSplitter::finish() {
  if (partial_.empty()) return std::nullopt;
  return std::exchange(partial_, {});
}

void Sink::append(std::string_view bytes) {
  if (broken_) return;
  if (const int error = std::exchange(lost_by_, 0))
    pending_ += "\ntutti: output is missing here: " + error_text(error) + '\n';
  pending_ += bytes;
}

void Sink::write_ready() {
  // A pipe that poll() reports as writable takes this many bytes without blocking.
  write_up_to(PIPE_BUF);
}

void Sink::flush() {
  pollfd writable{.fd = fd_, .events = POLLOUT, .revents = 0};  // the descriptor may be non-blocking
  while (has_pending()) {
    ::poll(&writable, 1, -1);
    write_up_to(pending_.size());
  }
}

bool Sink::write_up_to(std::size_t count) {
  const ssize_t written = ::write(fd_, pending_.data(), std::min(count, pending_.size()));
  if (written > 0) pending_.erase(0, static_cast<std::size_t>(written));
  if (written >= 0 || errno == EINTR || errno == EAGAIN) return true;
  // The disk is full, or the reader of the launcher's output has exited: the job continues.
  lost_by_ = errno;
  broken_ = !is_disk_full(errno);
  pending_.clear();
  return false;
}

RankOutput::RankOutput(int rank, const std::optional<std::filesystem::path>& log_dir, const std::string& headline)
    : prefix_("[rank " + std::to_string(rank) + "] ") {
  if (!log_dir) return;
  log_path_ = *log_dir / ("rank_" + std::to_string(rank) + ".log");
  const int mode = headline.empty() ? O_TRUNC : O_APPEND;
  log_ = FileDescriptor(::open(log_path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | mode, 0666));
  if (!log_.is_open()) {
    throw UsageError("cannot write " + log_path_.string() + " (" + error_text(errno) + "): choose another --log-dir");
  }
  if (headline.empty()) return;
  log((is_at_line_begin(log_.get()) ? "" : "\n") + headline + '\n');
}

bool RankOutput::is_open() const {
  return std::any_of(streams_.begin(), streams_.end(), [](const Stream& stream) { return stream.pipe.is_open(); });
}

bool RankOutput::read_piece(Stream& stream) {
  if (!stream.pipe.is_open()) return false;
  std::array<char, piece_size> buffer;
  const ssize_t count = ::read(stream.pipe.get(), buffer.data(), buffer.size());
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return errno == EINTR;
  if (count <= 0) {
    stream.pipe.reset();
    if (const auto rest = stream.lines.finish()) show(stream, *rest);
    return false;
  }
  const std::string_view bytes(buffer.data(), static_cast<std::size_t>(count));
  log(bytes);
  for (const auto& line : stream.lines.feed(bytes)) show(stream, line);
  return true;
}

void RankOutput::finish() {
  for (auto& stream : streams_) {
    for (std::size_t read = 0; read < max_rest && read_piece(stream); read += piece_size) {
    }
    if (const auto rest = stream.lines.finish()) show(stream, *rest);
  }
}

void RankOutput::show(Stream& stream, const std::string& line) {
  if (takes_ && takes_(line)) return;
  stream.sink->append(prefix_ + line + '\n');
  if (!is_stack_frame(line)) tail_.push_back(line);
  if (tail_.size() > tail_lines) tail_.pop_front();
}

void RankOutput::log(std::string_view bytes) {
  while (log_.is_open() && !bytes.empty()) {
    const ssize_t written = ::write(log_.get(), bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      const int error = errno;
      const bool has_gap = is_disk_full(error);
      if (!has_gap) log_.reset();
      if (!streams_.empty() && !(has_gap && std::exchange(log_has_gap_, true))) {
        streams_.back().sink->append("tutti: " + log_path_.string() +
                                     (has_gap ? " lacks output from here: " : " ends here: ") + error_text(error) +
                                     '\n');
      }
      return;
    }
  }
}

}  // namespace tutti
