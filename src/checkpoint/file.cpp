#include "checkpoint/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/detail/core/crc32c.h"

namespace tutti::checkpoint {
namespace {

// Linux transfers at most 2 GiB in one call. Smaller portions keep the input of the checksum in the cache.
constexpr std::size_t portion = std::size_t{1} << 20;

[[noreturn]] void fail(const std::string& what, const std::filesystem::path& path, int reason) {
  throw CheckpointError("cannot " + what + " " + path.string() + ": " + std::generic_category().message(reason));
}

template <typename Call>
auto until_not_interrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Closes explicitly, because close() must not be called again after EINTR.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

int open_file(const std::filesystem::path& path, int flags, const std::string& what) {
  const int descriptor = until_not_interrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); });
  if (descriptor < 0) fail(what, path, errno);
  return descriptor;
}

}  // namespace

OutputFile::OutputFile(std::filesystem::path path)
    : path_(std::move(path)), descriptor_(open_file(path_, O_WRONLY | O_CREAT | O_TRUNC, "create")) {}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto next = bytes.first(std::min(bytes.size(), portion));
    const ssize_t count = until_not_interrupted([&] { return ::write(descriptor_, next.data(), next.size()); });
    if (count < 0) fail("write", path_, errno);
    const auto written = bytes.first(static_cast<std::size_t>(count));
    digest_.crc = crc32c(written, digest_.crc);
    digest_.size += written.size();
    bytes = bytes.subspan(written.size());
  }
}

FileDigest OutputFile::finish() {
  if (until_not_interrupted([&] { return ::fsync(descriptor_); }) != 0) fail("sync", path_, errno);
  // Some file systems report a full disk only on close().
  if (::close(std::exchange(descriptor_, -1)) != 0 && errno != EINTR) fail("close", path_, errno);
  return digest_;
}

InputFile::InputFile(std::filesystem::path path)
    // Without O_NONBLOCK, opening a pipe by mistake would wait for a writer.
    : path_(std::move(path)), descriptor_(open_file(path_, O_RDONLY | O_NONBLOCK, "open")) {
  struct stat status {};
  const int failure = ::fstat(descriptor_, &status) != 0 ? errno : 0;
  if (failure == 0 && S_ISREG(status.st_mode)) {
    size_ = static_cast<std::uint64_t>(status.st_size);
    return;
  }
  ::close(descriptor_);
  if (failure != 0) fail("read", path_, failure);
  throw CheckpointError("cannot read " + path_.string() + ": it is not a regular file");
}

InputFile::~InputFile() {
  ::close(descriptor_);
}

void InputFile::read(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const auto next = bytes.first(std::min(bytes.size(), portion));
    const ssize_t count = until_not_interrupted([&] { return ::read(descriptor_, next.data(), next.size()); });
    if (count < 0) fail("read", path_, errno);
    if (count == 0) throw CheckpointError(path_.string() + " was truncated while it was read");
    const auto got = bytes.first(static_cast<std::size_t>(count));
    digest_.crc = crc32c(got, digest_.crc);
    digest_.size += got.size();
    bytes = bytes.subspan(got.size());
  }
}

FileDigest write_text(const std::filesystem::path& path, const std::string& text) {
  OutputFile file(path);
  file.write(std::as_bytes(std::span(text)));
  return file.finish();
}

FileText read_text(const std::filesystem::path& path) {
  InputFile file(path);
  FileText content;
  content.text.resize(file.size());
  file.read(std::as_writable_bytes(std::span(content.text)));
  content.digest = file.digest();
  return content;
}

void sync_folder(const std::filesystem::path& folder) {
  const Descriptor descriptor(open_file(folder, O_RDONLY | O_DIRECTORY, "open"));
  if (until_not_interrupted([&] { return ::fsync(descriptor.number()); }) == 0) return;
  if (errno != EINVAL && errno != ENOTSUP && errno != ENOSYS) fail("sync", folder, errno);
}

std::filesystem::path normalized(const std::filesystem::path& path) {
  auto normal = path.lexically_normal();
  if (!normal.has_filename()) normal = normal.parent_path();
  return normal.has_parent_path() ? normal : "." / normal;
}

void make_folders(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> missing;
  std::error_code error;
  for (auto path = normalized(folder); !std::filesystem::exists(path, error); path = normalized(path).parent_path()) {
    missing.push_back(path);
    if (path.parent_path() == path) break;
  }
  for (auto path = missing.rbegin(); path != missing.rend(); ++path) {
    std::filesystem::create_directory(*path, error);
    if (error) fail("create the folder", *path, error.value());
    sync_folder(normalized(*path).parent_path());
  }
  if (!std::filesystem::is_directory(folder, error)) {
    throw CheckpointError("cannot use " + folder.string() + " as a folder: it is not a folder");
  }
}

void rename_and_sync(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::error_code error;
  std::filesystem::rename(from, to, error);
  if (error) fail("rename " + from.string() + " to", to, error.value());
  sync_folder(normalized(to).parent_path());
}

void remove_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  if (error) fail("remove", folder, error.value());
}

}  // namespace tutti::checkpoint
