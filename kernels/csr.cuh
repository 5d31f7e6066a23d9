// What a check of a CSR finds out.

// Status words, zeroed by the host. Positions are stored as MAX - position, so that 0 says that there is none.
enum Status { FIRST, LAST, BAD_ROW, BAD_POSITION, UNSORTED };
[[maybe_unused]] constexpr int64 MAX = 0x7fffffffffffffffll;

// whether row offsets run from 0 to nnz without ever decreasing, as csr_check_rows found
__device__ inline bool offsets_are_right(const int64* status, int64 nnz) {
    return status[FIRST] == 0 && status[LAST] == nnz && !status[BAD_ROW];
}
