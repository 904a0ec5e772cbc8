// A rank that meets the others at the barrier 'first', and then does what its argument says instead of coming to the
// barrier 'second': nothing special (well), one that is killed, is elsewhere, or calls something else.
#include <unistd.h>

#include <csignal>
#include <exception>
#include <iostream>
#include <string>

#include "tutti/comm/communicator.h"

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "well";
  try {
    const auto communicator = tutti::Communicator::connect(tutti::read_environment());
    communicator.note_step(7);
    communicator.barrier({.timeout = std::nullopt, .name = "first"}).wait();
    if (communicator.rank() == 1 && mode == "killed") ::raise(SIGKILL);
    if (communicator.rank() == 1 && mode == "elsewhere") {
      std::cout << "is elsewhere" << std::endl;
      ::pause();
    }
    if (communicator.rank() == 1 && mode == "differs") communicator.broadcast_object("text");
    communicator.barrier({.timeout = std::nullopt, .name = "second"}).wait();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
