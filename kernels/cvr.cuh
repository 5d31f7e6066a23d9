// The tables of CVR as kernels see them.

template <class A, class I>
struct Cvr {
    const int64* step_ptr;
    Values<A> val;
    const I* col_base;
    const int64* col_ptr;
    const uint16* col_narrow;
    const I* col_wide;
    const uint32* rec_mask;
    const int64* rec_ptr;
    const I* rec_wb;
    const I* tail;
    const I* carry_row;
    const I* empty_row;
    int64 n_chunks, n_empty;
};
