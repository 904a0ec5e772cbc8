#include "launch/rank_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <system_error>

#include "core/descriptor_limit.h"

namespace tutti {
namespace {

void check(int error, const char* what) {
  if (error != 0) throw std::system_error(error, std::generic_category(), what);
}

class FileActions {
 public:
  FileActions() { check(::posix_spawn_file_actions_init(&actions_), "posix_spawn_file_actions_init"); }
  ~FileActions() { ::posix_spawn_file_actions_destroy(&actions_); }
  FileActions(const FileActions&) = delete;
  FileActions& operator=(const FileActions&) = delete;

  void open(int fd, const char* path, int flags) {
    check(::posix_spawn_file_actions_addopen(&actions_, fd, path, flags, 0), "posix_spawn_file_actions_addopen");
  }
  void duplicate(int from, int to) {
    check(::posix_spawn_file_actions_adddup2(&actions_, from, to), "posix_spawn_file_actions_adddup2");
  }
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

/// A new process group, with the signals of a program that a shell starts.
class SpawnAttributes {
 public:
  explicit SpawnAttributes(const sigset_t& mask) {
    check(::posix_spawnattr_init(&attributes_), "posix_spawnattr_init");
    sigset_t by_default;
    sigemptyset(&by_default);
    for (const int signal : {SIGINT, SIGTERM, SIGCHLD, SIGPIPE}) sigaddset(&by_default, signal);
    ::posix_spawnattr_setsigdefault(&attributes_, &by_default);
    ::posix_spawnattr_setsigmask(&attributes_, &mask);
    ::posix_spawnattr_setpgroup(&attributes_, 0);
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  }
  ~SpawnAttributes() { ::posix_spawnattr_destroy(&attributes_); }
  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;

  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_;
};

struct Pipe {
  FileDescriptor read_end;
  FileDescriptor write_end;
};

Pipe open_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) check(errno, "pipe2");
  Pipe pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
  // Only the launcher's end is non-blocking: programs expect a stdout that blocks.
  if (::fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) check(errno, "fcntl");
  return pipe;
}

/// The program of a rank: the child of its guard. 0: there is none any more, or the kernel does not tell.
pid_t child_of(pid_t guard) {
  const std::string number = std::to_string(guard);
  std::ifstream children("/proc/" + number + "/task/" + number + "/children");
  pid_t child = 0;
  children >> child;
  return child;
}

bool is_process_stopped(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const auto state = line.rfind(") ");  // after the name, which may hold anything
  return state != std::string::npos && (line[state + 2] == 'T' || line[state + 2] == 't');
}

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (auto& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

std::string ExitStatus::describe() const {
  if (signal == 0) return "exit code " + std::to_string(code);
  const char* name = ::sigdescr_np(signal);  // realtime signals have none
  return "signal " + std::to_string(signal) + (name == nullptr ? "" : std::string(" (") + name + ")");
}

void require_descriptors(const std::string& subject, int count) {
  constexpr std::uint64_t for_each = 5;  // two pipes, the event of its exit, a log or an input, its connection
  constexpr std::uint64_t for_others = 64;
  const auto needed = for_each * static_cast<std::uint64_t>(count) + for_others;
  require_descriptors(subject, needed, needed);
}

RankProcess::RankProcess(int rank, const RankCommand& command, RankOutput output, Sink& out, Sink& err)
    : rank_(rank), output_(std::move(output)) {
  Pipe out_pipe = open_pipe();
  Pipe err_pipe = open_pipe();
  FileActions actions;
  if (command.stdin_fd) {
    actions.duplicate(*command.stdin_fd, STDIN_FILENO);
  } else {
    actions.open(STDIN_FILENO, "/dev/null", O_RDONLY);
  }
  actions.duplicate(out_pipe.write_end.get(), STDOUT_FILENO);
  actions.duplicate(err_pipe.write_end.get(), STDERR_FILENO);
  const SpawnAttributes attributes(command.signal_mask);

  std::vector<std::string> words{command.guard.string(), std::to_string(::getpid()), command.program.string()};
  words.insert(words.end(), command.arguments.begin(), command.arguments.end());
  std::vector<std::string> environment = command.environment;
  check(::posix_spawn(&pid_, command.guard.c_str(), actions.get(), attributes.get(), pointers_to(words).data(),
                      pointers_to(environment).data()),
        "cannot start a rank");
  try {
    exit_event_.emplace(pid_);
  } catch (...) {
    end_group();
    throw;
  }
  output_.add_stream(std::move(out_pipe.read_end), out);
  output_.add_stream(std::move(err_pipe.read_end), err);
}

void RankProcess::end_group() const {
  signal_group(SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

const std::optional<ExitStatus>& RankProcess::poll_exit() {
  siginfo_t info{};
  if (!exit_status_ && ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
      info.si_pid == pid_) {
    exit_status_ = info.si_code == CLD_EXITED ? ExitStatus{info.si_status, 0} : ExitStatus{0, info.si_status};
  }
  return exit_status_;
}

void RankProcess::signal_group(int signal) const {
  const pid_t program = child_of(pid_);
  // `timeout` leads a group of its own, to which it passes signals on.
  const bool is_passed_on = signal == SIGINT || signal == SIGTERM;
  if (program > 0 && ::getpgid(program) == program) ::kill(is_passed_on ? program : -program, signal);
  ::kill(-pid_, signal);
}

void RankProcess::note_stop() {
  const pid_t program = child_of(pid_);
  was_stopped_ = program > 0 && is_process_stopped(program);
}

}  // namespace tutti
