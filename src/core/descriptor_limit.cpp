#include "core/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "tutti/core/error.h"

namespace tutti {

std::uint64_t count_open_descriptors() {
  std::error_code error;
  const std::filesystem::directory_iterator open("/proc/self/fd", error);
  if (error) return 0;
  return static_cast<std::uint64_t>(std::distance(begin(open), end(open))) - 1;  // without that of the folder
}

std::uint64_t raise_descriptor_limit(std::uint64_t wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) throw std::system_error(errno, std::generic_category(), "getrlimit");
  if (limit.rlim_cur >= wanted) return limit.rlim_cur;
  limit.rlim_cur = std::min<rlim_t>(wanted, limit.rlim_max);
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) throw std::system_error(errno, std::generic_category(), "setrlimit");
  return limit.rlim_cur;
}

void require_descriptors(const std::string& subject, std::uint64_t needed, std::uint64_t wanted) {
  const auto limit = raise_descriptor_limit(wanted);
  if (limit >= needed) return;
  throw UsageError(subject + " needs " + std::to_string(needed) + " file descriptors, but this process may open " +
                   std::to_string(limit) + ": raise the hard limit (ulimit -Hn), or start fewer");
}

}  // namespace tutti
