// tutti-bench-mpi: measures MPI_Allreduce, under mpirun. Rank 0 writes to the file of --results the library's name on
// one line, then lines "BYTES DTYPE MICROSECONDS NANOSECONDS_OF_CPU_PER_BYTE". Dtypes that MPI does not support are
// skipped.
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr double fewest_calls = 3;
constexpr double most_calls = 20'000;

std::string library_name() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string name(text, static_cast<std::size_t>(length));
  return name.substr(0, name.find_first_of(",\n"));
}

template <typename Element>
class Sum {
 public:
  Sum(std::int64_t bytes, MPI_Datatype type) : values_(static_cast<std::size_t>(bytes) / sizeof(Element)), type_(type) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }

  /// Throws std::runtime_error if the sum is wrong. Leaves zeros, so that further sums do not overflow.
  void check() {
    std::ranges::fill(values_, static_cast<Element>(rank_ + 1));
    run();
    const auto expected = static_cast<Element>(size_ * (size_ + 1) / 2);
    if (std::ranges::any_of(values_, [expected](Element value) { return value != expected; })) {
      throw std::runtime_error("MPI_Allreduce returned a wrong sum");
    }
    std::ranges::fill(values_, Element{0});
  }

  struct Cost {
    double microseconds;  ///< of one call, on the slowest rank
    double cpu_per_byte;  ///< nanoseconds for a byte of a rank, the mean of the ranks
  };

  Cost measure(int calls) {
    MPI_Barrier(MPI_COMM_WORLD);
    run();  // the ranks leave a barrier at different times
    const double start = MPI_Wtime();
    const std::clock_t cpu_before = std::clock();
    for (int call = 0; call < calls; ++call) run();
    const auto cpu = static_cast<double>(std::clock() - cpu_before) * 1e9 / CLOCKS_PER_SEC;
    Cost cost{.microseconds = (MPI_Wtime() - start) * 1e6 / calls,
              .cpu_per_byte = cpu / calls / static_cast<double>(values_.size() * sizeof(Element)) / size_};
    MPI_Allreduce(MPI_IN_PLACE, &cost.microseconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &cost.cpu_per_byte, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return cost;
  }

 private:
  void run() {
    MPI_Allreduce(MPI_IN_PLACE, values_.data(), static_cast<int>(values_.size()), type_, MPI_SUM, MPI_COMM_WORLD);
  }

  std::vector<Element> values_;
  MPI_Datatype type_;
  int rank_ = 0;
  int size_ = 1;
};

template <typename Element>
void take(std::ostream& out, std::int64_t bytes, const std::string& dtype, MPI_Datatype type, int repeats,
          double milliseconds) {
  Sum<Element> sum(bytes, type);
  sum.check();
  // All ranks have the slowest rank's time, so all ranks make the same number of calls.
  const double once = std::max(sum.measure(1).microseconds, 1e-3);
  const int calls = static_cast<int>(std::clamp(std::ceil(1000 * milliseconds / once), fewest_calls, most_calls));
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const auto cost = sum.measure(calls);
    out << bytes << ' ' << dtype << ' ' << cost.microseconds << ' ' << cost.cpu_per_byte << '\n';
  }
}

int run(int argc, char** argv) {
  std::string results;
  int repeats = 0;
  double milliseconds = 0;
  std::vector<std::int64_t> sizes;
  std::vector<std::string> dtypes;
  CLI::App app;
  app.add_option("--results", results)->required();
  app.add_option("--repeats", repeats)->required();
  app.add_option("--milliseconds", milliseconds)->required();
  app.add_option("--sizes", sizes)->required()->delimiter(',');
  app.add_option("--dtypes", dtypes)->required()->delimiter(',');
  app.parse(argc, argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::ostringstream out;
  out << library_name() << '\n';
  for (const auto& dtype : dtypes) {
    for (const auto size : sizes) {
      if (dtype == "float32") take<float>(out, size, dtype, MPI_FLOAT, repeats, milliseconds);
      if (dtype == "float64") take<double>(out, size, dtype, MPI_DOUBLE, repeats, milliseconds);
    }
  }
  if (rank != 0) return 0;
  std::ofstream file(results);
  file << out.str();
  file.close();
  if (!file) throw std::runtime_error("cannot write " + results);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  try {
    const int code = run(argc, argv);
    MPI_Finalize();
    return code;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tutti-bench-mpi: %s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}
