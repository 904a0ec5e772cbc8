#include <fstream>
#include <iostream>
#include <string>

#include "training.h"

namespace {

/// The path of the LibTorch that this process has loaded.
std::string loaded_libtorch() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.ends_with("/libtorch_cpu.so")) return line.substr(line.find('/'));
  }
  return "none";
}

}  // namespace

int main() {
  consumer_train();
  std::cout << "LibTorch: " << loaded_libtorch() << std::endl;
}
