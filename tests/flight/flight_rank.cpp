// The ranks of inspect_test.cpp. Each rank enters the barriers 'first' and 'second'. The first argument is the action
// of rank 1 before the barrier 'second':
// - well: nothing
// - killed: rank 1 kills itself
// - elsewhere: rank 1 prints a line and pauses
// - differs: rank 1 calls broadcast_object
// - throws: rank 1 throws, and exits when rank 0 has exited
// - refuses: every rank throws
// - again: every rank connects a second time and calls broadcast_object there
// The second argument, if any, is the file of the store over which the ranks connect.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <thread>

#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "tutti/comm/communicator.h"
#include "tutti/core/environment.h"
#include "tutti/core/error.h"

namespace {

tutti::Communicator connect(const char* file) {
  const auto environment = tutti::read_environment();
  if (file == nullptr) return tutti::Communicator::connect(environment);
  return tutti::Communicator::connect(c10::make_intrusive<c10d::FileStore>(file, environment.world_size),
                                      environment.rank, environment.world_size);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "well";
  int rank_0 = 0;  // process
  try {
    const auto communicator = connect(argc > 2 ? argv[2] : nullptr);
    communicator.set_step(7);
    communicator.barrier({.timeout = std::nullopt, .name = "first"}).wait();
    if (communicator.rank() == 1 && mode == "killed") ::raise(SIGKILL);
    if (communicator.rank() == 1 && mode == "elsewhere") {
      std::cout << "is elsewhere" << std::endl;
      ::pause();
    }
    if (mode == "again") connect((std::string(argv[2]) + "-2").c_str()).broadcast_object("text");
    if (mode == "refuses") throw tutti::UsageError("a wrong option");
    if (mode == "throws") {
      rank_0 = std::stoi(communicator.broadcast_object(std::to_string(::getpid())));
      if (communicator.rank() == 1) throw tutti::UsageError("the reason");
    }
    if (communicator.rank() == 1 && mode == "differs") communicator.broadcast_object("text");
    communicator.barrier({.timeout = std::nullopt, .name = "second"}).wait();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    while (rank_0 > 0 && rank_0 != ::getpid() && ::kill(rank_0, 0) == 0) std::this_thread::yield();
    return 1;
  }
}
