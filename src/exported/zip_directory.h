#pragma once
// The positions of the records in a zip file. Accepts the part of the format that torch.export.save writes:
// uncompressed records, one after the other. Every number in the file is checked against the file's size before its
// use. No I/O. https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace tutti::exported {

/// One file in the archive.
struct ZipRecord {
  std::string name{};
  std::uint64_t offset = 0;  ///< position of the first byte in the file
  std::uint64_t size = 0;
  std::uint32_t crc = 0;  ///< CRC-32; 0 if the writer omitted it
};

/// Reads `bytes` from position `offset` of the file. Is called only for ranges inside the file.
using ReadAt = std::function<void(std::uint64_t offset, std::span<std::byte> bytes)>;

/// Returns the records in the order of their positions. Their bytes are inside the file and do not overlap. Throws
/// CheckpointError if the file is not a zip file, or is truncated, compressed or encrypted. Passes on exceptions of
/// `read`.
std::vector<ZipRecord> read_zip_directory(std::uint64_t file_size, const ReadAt& read);

/// Throws CheckpointError for an archive of torch.jit.save, which has the record ROOT/constants.pkl.
[[noreturn]] void reject_torch_script();

/// Returns the CRC-32 of zip files. `crc` is the result for the bytes before `bytes`.
std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t crc = 0);

}  // namespace tutti::exported
