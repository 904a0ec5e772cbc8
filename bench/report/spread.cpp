#include "report/spread.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "report/results.h"
#include "tutti/core/error.h"

namespace tutti::bench {

Spread spread_of(const std::vector<double>& values) {
  const auto [least, most] = std::ranges::minmax(values);
  return {.median = median(values), .least = least, .most = most};
}

std::string number(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", decimals, value);
  return text;
}

std::string counted(int count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string describe(const Machine& machine) {
  return counted(machine.cores, "core") + " of " + machine.cpu + ", load " + number(machine.load, 1) +
         " before the run; LibTorch " + machine.libtorch + "; tutti " + machine.commit;
}

void check_json_file(const std::string& file) {
  if (file.empty()) return;
  const auto parent = std::filesystem::absolute(file).parent_path();
  if (std::filesystem::is_directory(file) || ::access(parent.c_str(), W_OK) != 0) {
    throw UsageError("cannot write --json " + file + ": give a file name in a folder that exists and is writable");
  }
}

void write_file(const std::string& file, const std::string& text) {
  std::ofstream out(file);
  out << text;
  out.close();
  if (!out) throw std::runtime_error("cannot write " + file);
}

}  // namespace tutti::bench
