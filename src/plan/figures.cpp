#include "plan/figures.h"

#include <cstddef>
#include <istream>
#include <limits>
#include <ostream>

#include "tutti/core/error.h"

namespace tutti::plan {
namespace {

constexpr int all_digits = std::numeric_limits<double>::max_digits10;

void require(const std::istream& in) {
  if (!in) throw Error("the ranks produced no measurements: see their output above");
}

}  // namespace

void write(std::ostream& out, const Machine& machine) {
  out.precision(all_digits);
  out << machine.cores << ' ' << machine.node_barrier_us << ' ' << machine.sum_gb_per_s << ' ' << machine.message_us
      << ' ' << machine.message_cpu_us << ' ' << machine.message_gb_per_s << '\n';
}

void write(std::ostream& out, const Work& work) {
  out.precision(all_digits);
  out << work.forward_ms << ' ' << work.backward_ms << ' ' << work.optimizer_ms << ' ' << work.micro_batches << ' '
      << work.buckets.size() << '\n';
  for (const Bucket& bucket : work.buckets) out << bucket.bytes << ' ' << bucket.ready << '\n';
}

Machine read_machine(std::istream& in) {
  Machine machine;
  in >> machine.cores >> machine.node_barrier_us >> machine.sum_gb_per_s >> machine.message_us >>
      machine.message_cpu_us >> machine.message_gb_per_s;
  require(in);
  return machine;
}

Work read_work(std::istream& in) {
  Work work;
  std::size_t buckets = 0;
  in >> work.forward_ms >> work.backward_ms >> work.optimizer_ms >> work.micro_batches >> buckets;
  require(in);
  for (std::size_t i = 0; i < buckets; ++i) {
    Bucket bucket;
    in >> bucket.bytes >> bucket.ready;
    require(in);
    work.buckets.push_back(bucket);
  }
  return work;
}

}  // namespace tutti::plan
