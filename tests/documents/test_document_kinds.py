"""Text that stands in a file and is easily lost or read wrongly: one small file for each kind."""

import datetime
import io
import zipfile
from collections.abc import Callable
from email import message_from_bytes, policy
from email.message import EmailMessage
from xml.etree.ElementTree import fromstring

import docx
import openpyxl
import pptx
import pypdf
import pytest
from pptx.chart.data import CategoryChartData, XyChartData
from pptx.enum.chart import XL_CHART_TYPE
from pypdf.annotations import FreeText

from specprefill_cli.documents.cleaning import clean_text
from specprefill_cli.documents.office import text_of
from specprefill_cli.documents.pieces import with_shared_names
from specprefill_cli.documents.registry import read_document
from tests.helpers.document_files import letter, make_pdf, page_texts, raw_pdf, refusal, save_to_bytes

RATES = [
    ("Room", "Winter", "Spring", "Summer"),
    ("Attic", "75", "", "130"),
    ("Loft", "60", "65", "70"),
    ("", "80", "85", "90"),
]
FILLED = (
    "Room | Winter | Spring | Summer\nRoom: Attic | Winter: 75 | Spring: 75 | Summer: 130\n"
    "Room: Loft | Winter: 60 | Spring: 65 | Summer: 70\nRoom: Loft | Winter: 80 | Spring: 85 | Summer: 90"
)


def read(data: bytes, name: str) -> str:
    return read_document(data, name).text


@pytest.mark.parametrize(("body", "text"), [
    ('<p>a<p style="color:red; display: none">b<p hidden>c<p>d', "a\nd"),
    ("<style>@media print {.x {display:none}} .y, #z {visibility: hidden}</style><p class=x>a<p class='q y'>b<p id=z>c", "a"),
    ("<style>.t{display:none} .t.on{display:block} b.x{opacity:0}</style><p class=t>a<p class='t on'>b<b class=x>c", "b"),
    ('<div style="opacity:0">Scripts fade it in', "Scripts fade it in"),
    ("<style>.w .v{display:none!important} #v{display:block}</style><p class=v>a<div class=w><p id=v class=v>b</div>", "a"),
    ("<style>.h{display:none} @media (min-width:9px){.m\\:b{display:block}.m\\:h{display:none}}</style>"
     "<p class='h m:b'>wide<p class=m:h>narrow", "wide"),
    ("<style>.p{display:none} #t:checked ~ div #p{display:block}</style><div><p class=p id=p>a</div><p class=p>b", "a"),
    ("<noscript><style>.n{display:none}</style></noscript><style media=print>.n{display:none}</style><p class=n>a", "a"),
    ("<style>.r{font-size:0} .r p{font-size:9pt} .m{display:none}</style><div class=r>a<p>b</div>"
     "<p class=m style='display:block'>c<p class=m>d", "b\nc"),
    ('Name: <input value="Orla"> <input type=hidden value=t><input type=checkbox checked> gift', "Name: Orla [x] gift"),
    ("<select><optgroup label=Mugs><option>Small<option selected>Large</select><canvas>No canvas", "Mugs\nSmall\n[x] Large"),
    ('<img src=a alt="Map of the port"><iframe srcdoc="&lt;p&gt;Open at ten"></iframe>', "Map of the port\nOpen at ten"),
    ("The fee is 12<sup>3</sup> euros, 10<sup>-6</sup> m<sup>2</sup>, the 4<sup>th</sup>",
     "The fee is 12 [3] euros, 10^-6 m^2, the 4th"),
    ('12<span style="vertical-align: super"><a href=x>3</a></span> euros', "12 [3] euros"),
    ("<style>.u{vertical-align:super}</style>10<span class=u>6</span> for 12<a epub:type=noteref>1</a>", "10^6 for 12 [1]"),
    ("Fee: <del>60</del> <s>70</s> 75", "Fee: 75"),
    ("<math><msup><mn>10</mn><mn>6</mn></msup></math> litres", "10^6 litres"),
    ("<math><mfrac><mn>1</mn><mn>2</mn></mfrac><annotation>x</annotation></math> litre", "1/2 litre"),
    ('<ol start="3"><li>Close<li><p>Call</ol><ul><li>x</ul>', "3. Close\n4. Call\nx"),
    ("<ol start=1500><li>Sign<li></ol><ol start=0><li value=12>Pay<li></li></ol><h1>Fees</h1>", "1500. Sign\n12. Pay\nFees"),
    ("<table><tr><th>Name<th>Bonus<tr><td rowspan=2>Ann<td>9<tr><td><tr><td>Bob<td>4<tr><td>5<td>5</table>",
     "Name | Bonus\nName: Ann | Bonus: 9\nName: Bob | Bonus: 4\nName: 5 | Bonus: 5"),
    ("<table><tr><td>a<td>b<td rowspan=2>c<tr><td>d<tr><td>e<td>f<td>g</table>", "a | b | c\nd | | c\ne | f | g"),
    ('<ol type="i" start="3"><li>Close<li>Call<ol type="A"><li>x</ol></ol>', "iii. Close\niv. Call\nA. x"),
    ("<table><tr><td>left<td><table><tr><th>a<th>b<tr><td>1<td>2</table></table>", "left\na | b\na: 1 | b: 2"),
])  # fmt: skip
def test_html_as_a_browser_shows_it(body: str, text: str) -> None:
    assert read(f"<!doctype html><body>{body}".encode(), "a.html") == text


def test_titles_and_authors() -> None:
    page = b"<html><head><title>Fees</title><meta name=author content='Orla Finch'></head><body>x"
    document = docx.Document()
    document.core_properties.title, document.core_properties.author = "Fees", "Orla Finch"
    document.add_paragraph("x")
    for data, name in ((page, "a.html"), (save_to_bytes(document), "a.docx")):
        assert read(data, name) == "Fees\nAuthor: Orla Finch\n\nx"


def html_table() -> bytes:
    rows = "<tr><td>Attic<td colspan=2>75<td>130<tr><td rowspan=2>Loft<td>60<td>65<td>70<tr><td>80<td>85<td>90"
    return f"<html><table><tr>{''.join(f'<th>{name}' for name in RATES[0])}{rows}</table>".encode()


def filled_table(file, table) -> bytes:
    for number, values in enumerate(RATES):
        for place, value in enumerate(values):
            table.cell(number, place).text = value
    table.cell(1, 1).merge(table.cell(1, 2))
    table.cell(2, 0).merge(table.cell(3, 0))
    return save_to_bytes(file)


def word_table() -> bytes:
    document = docx.Document()
    return filled_table(document, document.add_table(rows=4, cols=4))


def slide_table() -> bytes:
    deck = pptx.Presentation()
    shapes = deck.slides.add_slide(deck.slide_layouts[6]).shapes
    return filled_table(deck, shapes.add_table(4, 4, 0, 0, 100, 100).table)


def sheet_table() -> bytes:
    book = openpyxl.Workbook()
    book.active.append(["Prices of the rooms"])
    for values in RATES:
        book.active.append([int(value) if value.isdigit() else value or None for value in values])
    for cells in ("A1:D1", "B3:C3", "A4:A5"):
        book.active.merge_cells(cells)
    return save_to_bytes(book)


@pytest.mark.parametrize(("make", "name", "before"), [
    (html_table, "a.html", ""), (word_table, "a.docx", ""), (slide_table, "a.pptx", ""),
    (sheet_table, "a.xlsx", "# Sheet\nPrices of the rooms\n"),
])  # fmt: skip
def test_merged_cells_are_filled_and_rows_carry_columns(make: Callable[[], bytes], name: str, before: str) -> None:
    assert read(make(), name) == before + FILLED


@pytest.mark.parametrize(("text", "name", "expected"), [
    ("Region,Q1,Q2\nNorth,10,-20\n\nRegion,Q1,Q2\nWest,11,5%", "a.csv", "Region | Q1 | Q2\nRegion: North | Q1: 10 | Q2: -20\n"
     "Region | Q1 | Q2\nRegion: West | Q1: 11 | Q2: 5%"),
    ("Mass,20 kg,50 kg\nVolume,1 l,2 l\nPieces,7,9", "a.csv", "Mass | 20 kg | 50 kg\nVolume | 1 l | 2 l\nPieces | 7 | 9"),
    ("Bank,Coast\nAccount,N1\nDay,Text,Sum\n1/2,Rent,-8\n1/3,Pay,9", "a.csv",
     "Bank | Coast\nAccount | N1\nDay | Text | Sum\n1/2 | Rent | -8\n1/3 | Pay | 9"),
    ("Name:,Orla,Town:,Ely\nRoad:,Mill Lane,Land:,Fens", "a.csv", "Name: | Orla | Town: | Ely\nRoad: | Mill Lane | Land: | Fens"),
    ("Name:,Fee:\nOrla,5", "a.csv", "Name: | Fee:\nName:: Orla | Fee:: 5"),
    ("Berth,,Fee,Fee,\nB077,,1,2,see office\nB078,,3,4,", "a.csv",
     "Berth | | Fee | Fee\nBerth: B077 | Fee: 1 | Fee: 2 | see office\nBerth: B078 | Fee: 3 | Fee: 4"),
    ("Account,Moss\nRange,May\n\nDate,Text,Sum,Left\n1/2,Rent,-8,5\n1/3,Pay,9,14", "a.csv",
     "Account | Moss\nRange | May\nDate | Text | Sum | Left\nDate: 1/2 | Text: Rent | Sum: -8 | Left: 5\n"
     "Date: 1/3 | Text: Pay | Sum: 9 | Left: 14"),
    ("Port,2024,,,2025,,\n,a,b,c,d,e,f\nWick,1,2,3,4,5,6", "a.csv",
     "Port | 2024 | | | 2025\n| a | b | c | d | e | f\nWick | 1 | 2 | 3 | 4 | 5 | 6"),
    (f"Who,{'x' * 70},01/2024\nAnn,no,3\nshut,shut,shut", "a.csv",
     f"Who | {'x' * 70} | 01/2024\nWho: Ann | {'x' * 70}: no | 01/2024: 3\nWho: shut | {'x' * 70}: shut | 01/2024: shut"),
    ("no,no,no\nno,no,no\nyes,no,no", "a.csv", "no | no | no\nno | no | no\nyes | no | no"),
    ("Room,1,2\nMon,Ann,Bob\nTue,Dee,Eve", "a.csv", "Room | 1 | 2\nMon | Ann | Bob\nTue | Dee | Eve"),
    ("Q,A,Q,A\nWho?,Ann,Where?,Ely\nHow?,Q,Why?,A", "a.csv", "Q | A | Q | A\nWho? | Ann | Where? | Ely\nHow? | Q | Why? | A"),
    ("sep=;\nName;Bonus\nMoss;930\nAda;120", "a.csv", "Name | Bonus\nName: Moss | Bonus: 930\nName: Ada | Bonus: 120"),
    ('{"M\\u00fcller": "\\\\u00e9"}', "a.json", '{"Müller": "\\\\u00e9"}'),
    ("2024-01-05,Ann,Bob\n2024-01-06,Cy,Dee", "a.csv", "2024-01-05 | Ann | Bob\n2024-01-06 | Cy | Dee"),
    ("<html><table><tr><td>Region<td colspan=2>North<td colspan=2>South<tr><td><td>Q1<td>Q2<td>Q1<td>Q2<tr><td>Ely<td>1<td>2<td>3"
     "<td>4</table>", "a.html", "Region | North | North | South | South\n| Q1 | Q2 | Q1 | Q2\n"
     "Region: Ely | North Q1: 1 | North Q2: 2 | South Q1: 3 | South Q2: 4"),
    ("Name | Bonus\n--- | ---\nMoss | 930\n\nx | y", "a.md", "Name | Bonus\n--- | ---\n| Name: Moss | Bonus: 930 |\n\nx | y"),
    ("```\na | b\n--|--\n1 | 2\n```", "a.md", "```\na | b\n--|--\n1 | 2\n```"),
    ("<html><table><tr><td>Room<td>Fee<tr><td>Attic<td>75<tr><td colspan=2>Closed<tr><td>Loft<td>60</table>", "a.html",
     "Room | Fee\nRoom: Attic | Fee: 75\nClosed\nRoom: Loft | Fee: 60"),
    ("<html><table><tr><td>Boat<td>Heron<tr><td>Rent<td>850 EUR<tr><td>Deposit<td>90 EUR<tr><td>Start<td>1 June 2024</table>",
     "a.html", "Boat | Heron\nRent | 850 EUR\nDeposit | 90 EUR\nStart | 1 June 2024"),
    ("<html><table><tr><td>Event<td>Day<tr><td>Fair<td>1 June 2024<tr><td>Race<td>12 July 2024</table>", "a.html",
     "Event | Day\nEvent: Fair | Day: 1 June 2024\nEvent: Race | Day: 12 July 2024"),
    ("<html><table><tr><th colspan=3>Fees<tr><th>Boat<th colspan=2>2024<tr><th><th>May<th>June<tr><td>Heron<td>7<td>9",
     "a.html", "Fees | Fees | Fees\nBoat | 2024 | 2024\n| May | June\nBoat: Heron | 2024 May: 7 | 2024 June: 9"),
    ('name,note\nAnn,"two, or\nthree"\n\n', "a.csv", "name | note\nname: Ann | note: two, or three"),
    ("preis;menge\n1,5;2\n2,5;3", "a.csv", "preis | menge\npreis: 1,5 | menge: 2\npreis: 2,5 | menge: 3"),
    ("a\tb\n\t2", "a.tsv", "a | b\nb: 2"), ("one\ntwo, three", "a.csv", "one\ntwo | three"),
    ("Ames|1,200|3,400\nBell|5,600|7,800", "a.csv", "Ames | 1,200 | 3,400\nBell | 5,600 | 7,800"),
    ("id,tags\n1,a|b\n2,c|d", "a.csv", "id | tags\nid: 1 | tags: a|b\nid: 2 | tags: c|d"),
    ("id,year,tags\n1,2020,red;blue", "a.csv", "id | year | tags\nid: 1 | year: 2020 | tags: red;blue"),
    ("<html><table><tr><th colspan=2>Lake Foo<tr><th>Area<td>12 km<tr><th>Depth<td>30 m</table>", "a.html",
     "Lake Foo\nArea | 12 km\nDepth | 30 m"),
    (f"![plot](data:image/png;base64,{'iVBORw0K' * 200}) is below.", "a.md", "![plot](data:image/png;base64,) is below."),
    (f'{{"x": "{"ACGT" * 300}", "image/png": "{"iVBORw0K" * 200}"}}', "a.json", f'{{"x": "{"ACGT" * 300}", "image/png": ""}}'),
    ("Fee 2023,Fee 2024\n1,2", "a.csv", "Fee 2023 | Fee 2024\nFee 2023: 1 | Fee 2024: 2"),
    ("2024-01-01;1,5\n2024-01-02;2,5", "a.csv", "2024-01-01 | 1,5\n2024-01-02 | 2,5"),
    ("a, b\tc\nd, e\tf", "a.tsv", "a, b | c\na, b: d, e | c: f"),
    ("<html><table><tr><td>Name<td>Ann Lee<td>Born<td>3 May 1980<tr><td>Town<td>Cork<td>Phone<td>555</table>", "a.html",
     "Name | Ann Lee | Born | 3 May 1980\nTown | Cork | Phone | 555"),
    ("<html><table><tr><th>From<td>Cork<th>To<td>Ely<tr><th>Leaves<td>10:05<th>Arrives<td>13:20</table>", "a.html",
     "From | Cork | To | Ely\nLeaves | 10:05 | Arrives | 13:20"),
    ("BEGIN:VCALENDAR\r\nDESCRIPTION:The code is 77\r\n 31", "a.ics", "BEGIN:VCALENDAR\nDESCRIPTION:The code is 7731"),
])  # fmt: skip
def test_only_rows_under_a_header_carry_names(text: str, name: str, expected: str) -> None:
    assert read(text.encode(), name) == expected


def test_an_unclosed_quote_is_a_warning() -> None:
    document = read_document(b'boat,note\n7,"new sail\n8,"one,\ntwo"\n9,old\n', "a.csv")
    assert document.text == 'boat | note\nboat: 7 | note: "new sail\nboat: 8 | note: one, two\nboat: 9 | note: old'
    assert "line 2: a quote is not closed" in document.warnings[0]


@pytest.mark.parametrize(("value", "number_format", "shown"), [
    (123, "00000", "00123"), (0.125, "0.0%", "12.5%"),
    (datetime.timedelta(hours=26, minutes=30), "[h]:mm", "26:30"), (1234.5, '#,##0.00 "EUR"', "1,234.50 EUR"),
    (-3, "[$€-407]#,##0.00;[Red]([$€-407]#,##0.00)", "(€3.00)"), (2.5, "0.###", "2.5"), (2.5, "General", "2.5"),
    (5, '0.0"%"', "5.0%"), (1234567, "#,##0,", "1,235"),
    (1234.5, "#,##0", "1,235"), (1.005, "0.00", "1.01"), (5, "[<1]0.0%;0", "5"),
    (-5, "#,##0;[Red]#,##0", "-5"),
])  # fmt: skip
def test_numbers_as_the_sheet_shows_them(value: float, number_format: str, shown: str) -> None:
    book = openpyxl.Workbook()
    book.active["A1"], book.active["A1"].number_format = value, number_format
    assert read(save_to_bytes(book), "a.xlsx") == f"# Sheet\n{shown}"


def test_word_marks_raised_text_and_leaves_hidden_and_struck_text_out() -> None:
    document = docx.Document()
    paragraph = document.add_paragraph("The deposit is 45")
    marks = {"1": "superscript", " pounds, 10": "", "6": "superscript", " 60": "strike", "x": "hidden", " 75": ""}
    for text, mark in marks.items():
        run = paragraph.add_run(text)
        if mark:
            setattr(run.font, mark, True)
    result = read_document(save_to_bytes(document), "a.docx")
    assert (result.text, result.warnings) == ("The deposit is 45 [1] pounds, 10^6 75", ("struck text is left out",))


def test_charts_are_tables() -> None:
    deck, data, points = pptx.Presentation(), CategoryChartData(), XyChartData()
    data.add_category("Coast").add_sub_category("North")
    data.add_category("Isles").add_sub_category("South")
    data.add_series("Ferries", (1804, 2132))
    data.add_series("Share", (0.125, 0.2), number_format="0.0%")
    for name, x in (("Mill", 1), ("Quay", 5)):
        points.add_series(name).add_data_point(x, 10 * x)
    for kind, chart in ((XL_CHART_TYPE.COLUMN_CLUSTERED, data), (XL_CHART_TYPE.XY_SCATTER, points)):
        deck.slides.add_slide(deck.slide_layouts[6]).shapes.add_chart(kind, 0, 0, 9, 9, chart)
    text = read(save_to_bytes(deck), "a.pptx")
    assert "North | Ferries: 1804 | Share: 12.5%\nSouth | Ferries: 2132 | Share: 20.0%" in text
    assert text.endswith("1 | Mill: 10\n5 | Quay: 50")


@pytest.mark.parametrize("name", ["a.eml", "stdin"])
def test_mail_with_attachments(name: str) -> None:
    document = read_document(b"X-Spam: no\n" * 99 + letter(), name)
    assert document.text == (
        "From: r@example.org\nSubject: Fee für 2025\n\nThe fee rises to 74 pounds.\n\n# Attachment: t.csv\n\nName | Bonus\n"
        "Name: Moss | Bonus: 930\n\n# Attachment: a.pdf\n\nAlpha"
    )
    assert [warning.split(":")[0] for warning in document.warnings] == ["attachment b.bin"]
    message = EmailMessage()
    message.add_attachment(make_pdf(["Alpha"]), maintype="application", subtype="pdf", filename="a.pdf")
    assert read(bytes(message), "a.eml") == "# Attachment: a.pdf\n\nAlpha"


def test_saved_pages_and_mail_in_mail() -> None:
    page = EmailMessage()
    page.set_content("<title>T</title><p>Open at <b>ten</b></p>", subtype="html")
    page.add_related(b"x", maintype="image", subtype="png", cid="<1>")
    assert read(bytes(page), "a.mhtml").endswith("Open at ten")
    page = EmailMessage()
    page.set_content('<link rel=stylesheet href="cid:c1"/><p class=old>Open at nine</p>Open at ten', subtype="html")
    page.add_related(b".old {display: none}", maintype="text", subtype="css", headers=["Content-Location: cid:c1"])
    assert read(bytes(page), "a.mhtml").split() == "Open at ten".split()
    outer = message_from_bytes(letter(), policy=policy.default)
    for _ in range(5):
        inner, outer = outer, EmailMessage()
        outer.set_content("See below.")
        outer.add_attachment(inner)
    assert "attached too deep" in read_document(bytes(outer), "a.eml").warnings[0]


def test_mail_as_programs_send_it() -> None:
    head = b"MIME-Version: 1.0\nContent-Type: multipart/alternative; boundary=a\n\n--a\n\n \n--a\n"
    html = (
        b"Content-Type: multipart/mixed; boundary=m\n\n--m\nContent-Type: text/html\n\n<s>60</s> Fee \xc2\xa374\n--m\n"
    )
    table = b"Content-Type: text/csv\nContent-Disposition: attachment; filename=t.csv\n\nName,Bonus\nMoss,930\n--m--\n--a--\n"
    document = read_document(head + html + table, "a.eml")
    assert document.text == "Fee £74\n\n# Attachment: t.csv\n\nName | Bonus\nName: Moss | Bonus: 930"
    assert document.warnings == ("struck text is left out",)
    message = EmailMessage()
    message.set_content("Please view this message as HTML.")
    message.add_alternative("<p>The fee is 74 pounds.</p>" * 9, subtype="html")
    message.add_alternative("BEGIN:VCALENDAR\nLOCATION:Mill\n" * 9, subtype="calendar")
    text = read(bytes(message), "a.eml")
    assert text.startswith("The fee is 74 pounds.")
    assert "74 pounds.\n\n# Attachment: text/calendar\n\nBEGIN:VCALENDAR\nLOCATION:Mill" in text
    assert read(b"Content-Type: text/plain; charset=iso-2022-jp\n\n\x1b$B-!\x1b(B50", "a.eml") == "①50"
    message = EmailMessage()
    message.set_content("Berth\n\nFee\n\nB077\n\n127")
    message.add_alternative("<table><tr><th>Berth<th>Fee<tr><td>B077</td><td>127</td></table>", subtype="html")
    assert read(bytes(message), "a.eml") == "Berth | Fee\nBerth: B077 | Fee: 127"


def test_mailboxes() -> None:
    first = b"From o@x Mon Mar  3\nSubject: One\nContent-Transfer-Encoding: base64\n\nVGhlIGZlZSBpcyA3NC4=\n\n"
    # The library fails on this address.
    second = b'From m@x Tue Mar  4\nTo: M\xc3\xbcller <a@b>, "\nSubject: Two\nContent-Type: text/html\n\n<b>From</b>\nhere: on\n'
    for name in ("a.mbox", "Inbox"):
        pages = page_texts(read_document(first + second, name))
        assert pages == ["Subject: One\n\nThe fee is 74.", 'To: Müller <a@b>, "\nSubject: Two\n\nFrom here: on']


def test_rich_text_through_another_package() -> None:
    data = rb"{\rtf1\ansi{\fonttbl{\f0 Arial;}}\f0 The caf\'e9 fee is 74\~000 pounds! # 5\par}"
    pytest.importorskip("kreuzberg")
    assert read(data, "stdin") == "The café fee is 74\xa0000 pounds! # 5"


@pytest.mark.parametrize(("run", "text"), [
    ('<r><t>5 </t><sym font="Symbol" char="F06D"/><t>g</t></r>', "5 \u00b5g"),
    ('<r><sym font="Wingdings" char="F0FE"/><t> yes</t></r>', "[x] yes"),
    ("<sSup><e><r><t>10</t></r></e><sup><r><t>6</t></r></sup></sSup>", "10^6"),
    ("<r><t>3</t></r><f><num><r><t>1</t></r></num><den><r><t>2</t></r></den></f>", "3 1/2"),
    ("<tbl><tr><trPr><gridBefore val='2'/></trPr><tc><r><t>a</t></r></tc><tc><r><t>b</t></r></tc></tr></tbl>", "| | a | b"),
    ("<r><checkBox><checked/></checkBox><checkBox/></r>", "[x][ ]"),
    ('<r><ddList><result val="1"/><listEntry val="red"/><listEntry val="blue"/></ddList></r>', "blue"),
])  # fmt: skip
def test_symbols_formulas_and_fields_of_word(run: str, text: str) -> None:
    assert clean_text(text_of(fromstring(f"<body><p>{run}</p></body>"))).strip() == text


SPANS = {"75": "number-columns-spanned='2'", "Loft": "number-rows-spanned='2'"}
ROWS = [[f"<table-cell {SPANS.get(text, '')}><p>{text}</p></table-cell>" * bool(text) for text in row] for row in RATES]
RATES_TABLE = "".join(f"<table-row>{''.join(row)}</table-row>" for row in ROWS)


@pytest.mark.parametrize(("kind", "body", "pages"), [
    ("presentation", "<page><p>Gate <s/>A</p></page><page><p>Nine</p></page>", ["Gate A", "Nine"]),
    ("text", f"<table>{RATES_TABLE}</table>", [FILLED]),
    ("text", "<table><table-row><table-cell><p>Name</p></table-cell><table-cell><p>Bonus</p></table-cell></table-row>"
     "<table-row><table-cell number-rows-spanned='2'><p>Ann</p></table-cell><table-cell><p>9</p></table-cell></table-row>"
     "<table-row><covered-table-cell/><table-cell/></table-row>"
     "<table-row><table-cell><p>Bob</p></table-cell><table-cell><p>4</p></table-cell></table-row></table>",
     ["Name | Bonus\nName: Ann | Bonus: 9\nName: Bob | Bonus: 4"]),
    ("text", "<h outline-level='2'>Fee</h><p>bo<span>at</span>: <span style-name='T1'>60</span>70"
     "<note><note-citation>1</note-citation><note-body><p>Net.</p></note-body></note>, 10<span style-name='T2'>6</span></p>",
     ["## Fee\nboat: 70 [1] (Net.), 10^6"]),
    ("spreadsheet", "<table name='A'><table-row number-rows-repeated='9'><table-cell><p>Fees</p></table-cell></table-row>"
     "<table-row number-rows-repeated='9'><table-cell/></table-row><table-row><table-cell><p>007</p></table-cell>"
     "<table-cell><p>5%</p></table-cell></table-row></table><table name='B'/>", ["# A\n" + "Fees\n" * 9 + "007 | 5%", "# B"]),
])  # fmt: skip
def test_open_documents(kind: str, body: str, pages: list[str]) -> None:
    looks = "<style name='T1'><t text-line-through-style='solid'/></style><style name='T2'><t text-position='super 58%'/></style>"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("mimetype", f"application/vnd.oasis.opendocument.{kind}")
        styles = f"<automatic-styles>{looks}</automatic-styles>"
        archive.writestr("content.xml", f"<a xmlns='b'>{styles}<body><{kind}>{body}</{kind}></body></a>")
    assert page_texts(read_document(stream.getvalue(), "stdin")) == pages
    if "rows-repeated" in body:
        assert "the limit of 799 characters" in refusal(stream.getvalue(), "a.ods", max_characters=799)


LEFT = [
    "The north kiln was built in",
    "the old mill by a family of",
    "potters. It burns beech and",
    "holds six hundred pots.",
]
RIGHT = [
    "The south kiln stands behind",
    "the school. It is electric",
    "and is fired each week, but",
    "holds no more than forty.",
]


def line(text: str, x: int, y: int, size: int = 12) -> str:
    return f"BT /F1 {size} Tf 1 0 0 1 {x} {y} Tm ({text}) Tj ET\n"


def test_columns_drawn_row_by_row_and_a_table_below() -> None:
    content = line("Two kilns of the village", 60, 760)
    for row, (left, right) in enumerate(zip(LEFT, RIGHT, strict=True)):
        content += line(left, 60, 740 - 16 * row) + line(right, 310, 740 - 16 * row)
    for row, (left, right) in enumerate([("Kiln", "Pots"), ("North", "600"), ("South", "40"), ("Old", "12")]):
        content += line(left, 60, 660 - 16 * row) + line(right, 310, 660 - 16 * row)
    expected = ["Two kilns of the village", *LEFT, *RIGHT, "Kiln Pots", "North 600", "South 40", "Old 12"]
    assert read(raw_pdf(content), "a.pdf").split("\n") == expected


def turned(data: bytes) -> bytes:
    """The page of a PDF drawn upwards and shown turned, so that it looks the same."""
    data = data.replace(b"/MediaBox[0 0 595 842]", b"/Rotate 90/MediaBox[0 0 842 842]")
    return data.replace(b"stream\nBT", b"stream\n0 1 -1 0 842 0 cm BT", 1)


@pytest.mark.parametrize("by_columns", [False, True])
def test_a_table_with_lines_is_read_row_by_row(by_columns: bool) -> None:
    rows = [
        ("Service", "Who", "Fee"),
        ("Mooring of a boat|for the winter", "Harbour|master", "450"),
        ("Lift out", "Crane crew", "75"),
    ]
    cells = [(row, column) for row in range(3) for column in range(3)]
    content = line("Fees of the port", 60, 780)
    for row, column in sorted(cells, key=lambda cell: cell[:: -1 if by_columns else 1]):
        for number, text in enumerate(rows[row][column].split("|")):
            content += line(text, 65 + 110 * column, 745 - 40 * row - 14 * number)
    content += "".join(f"60 {y} m 390 {y} l S\n" for y in (760, 720, 680, 640))
    content += "".join(f"{60 + 110 * number} 640 m {60 + 110 * number} 760 l S\n" for number in range(4))
    for data in (raw_pdf(content), turned(raw_pdf(content))):
        assert read(data, "a.pdf").split("\n") == [
            "Fees of the port",
            "Service | Who | Fee",
            "Service: Mooring of a boat for the winter | Who: Harbour master | Fee: 450",
            "Service: Lift out | Who: Crane crew | Fee: 75",
        ]


def test_cells_over_two_columns_or_rows_of_a_table_with_lines() -> None:
    texts = [(65, 745, "Kind"), (255, 745, "Winter rates"), (65, 705, "Lift"), (175, 705, "75"), (285, 705, "80")]
    texts += [(175, 665, "60"), (285, 665, "65"), (65, 625, "Crane"), (175, 625, "9"), (285, 625, "")]
    content = "".join(line(text, x, y) for x, y, text in texts)
    content += "".join(f"{170 if y == 680 else 60} {y} m 390 {y} l S\n" for y in (760, 720, 680, 640, 600))
    content += "".join(f"{x} 600 m {x} {720 if x == 280 else 760} l S\n" for x in (60, 170, 280, 390))
    assert read(raw_pdf(content), "a.pdf").split("\n") == [
        "Kind | Winter rates | Winter rates",
        "Kind: Lift | Winter rates: 75 | Winter rates: 80",
        "Kind: Lift | Winter rates: 60 | Winter rates: 65",
        "Kind: Crane | Winter rates: 9",
    ]


# Lines without any at the sides of a table and between its numbers, and a text beside all numbers.
FEW_LINES = line("Kitchen", 390, 670) + "".join(f"55 {y} m 480 {y} l S\n" for y in (718, 696, 636))
TERMS = " ".join(["The fee is due each month."] * 20)
FEW_LINES += "".join(f"{x} 636 m {x} 718 l S\n" for x in (165, 275, 385))


@pytest.mark.parametrize(("rows", "drawn", "lines"), [
    (["|Run 1|Run 2|Run 3", "Skerrin|07:10||12:30", "|by bus", "Mill Quay|07:25|09:40|12:45", "North End|07:40"], "",
     ["| Run 1 | Run 2 | Run 3", "Skerrin | Run 1: 07:10 | Run 3: 12:30", "Run 1: by bus",
      "Mill Quay | Run 1: 07:25 | Run 2: 09:40 | Run 3: 12:45", "North End | Run 1: 07:40"]),
    (["Item|Qty|Price|Room", "Kettle|2|19.50", "Pan||25.00", "Lamp|1"], FEW_LINES,
     ["Item | Qty | Price | Room", "Item: Kettle | Qty: 2 | Price: 19.50 | Room: Kitchen",
      "Item: Pan | Price: 25.00 | Room: Kitchen", "Item: Lamp | Qty: 1 | Room: Kitchen"]),
    (["Pool|45", "Gym|" + TERMS], FEW_LINES, ["Pool 45", f"Gym {TERMS}", "Kitchen"]),
    (["Question|Yes|No", "Smoker?|X", "Allergies?||X", "Pain?||X"], "",
     ["Question | Yes | No", "Question: Smoker? | Yes: X", "Question: Allergies? | No: X", "Question: Pain? | No: X"]),
    (["|Monday|Tuesday", "Early|Ann", "Late||Bob"], "", ["| Monday | Tuesday", "Early | Monday: Ann", "Late | Tuesday: Bob"]),
    (["Text|Debit|Credit", "Shop|58.00", "Pay||300.00", "Carried over from page one:||9.00"],
     line("Coast Bank", 60, 760) + line("Page 2", 390, 760), ["Text | Debit | Credit", "Text: Shop | Debit: 58.00",
     "Text: Pay | Credit: 300.00", "Text: Carried over from page one: | Credit: 9.00", "Coast Bank Page 2"]),
    (["Day|Text|In|Out", "1 May|Shop in", "|Cork", "2 May|Salary", "|of May"], line("23.00", 280, 680) + line("9.00", 390, 640),
     ["Day | Text | In | Out", "Day: 1 May | Text: Shop in Cork | In: 23.00", "Day: 2 May | Text: Salary of May | Out: 9.00"]),
    (["52||Rules|2020", "1.3|Terms", "1.4|Scope", "1.5|Ends"], "", ["52 Rules 2020", "1.3 Terms", "1.4 Scope", "1.5 Ends"]),
])  # fmt: skip
def test_empty_cells_of_a_table_with_few_or_no_lines(rows: list[str], drawn: str, lines: list[str]) -> None:
    places = [(row, column, text) for row, texts in enumerate(rows) for column, text in enumerate(texts.split("|"))]
    content = "".join(line(text, 60 + 110 * column, 700 - 20 * row) for row, column, text in places)
    assert read(raw_pdf(content + drawn), "a.pdf").split("\n") == lines


def test_a_name_between_two_columns_is_that_of_both() -> None:
    table = with_shared_names([["Port", "", "2022", ""], ["", "Boats", "", "Fee"], ["Wick", "7", "", "70"]])
    assert table == [["Port", "2022", "2022"], ["", "Boats", "Fee"], ["Wick", "7", "70"]]


def test_raised_text_in_a_pdf() -> None:
    content = line("The deposit is 45", 72, 700) + line("1", 166, 705, 7) + line(" pounds, 10", 171, 700)
    content += line("6", 232, 705, 7) + line("litres.", 240, 700) + line("1", 72, 605, 7) + line("Refundable.", 77, 600)
    assert read(raw_pdf(content), "a.pdf") == "The deposit is 45 [1] pounds, 10^6 litres.\n[1] Refundable."
    content = line("Less CO", 72, 700) + line("2", 118, 697, 7) + line("is emitted.", 124, 700)
    assert read(raw_pdf(content), "a.pdf") == "Less CO2 is emitted."
    # An initial is not followed by a raised line.
    content = line("T", 72, 686, 28) + line("he quick fox jumps", 92, 700) + line("over the dog.", 92, 686)
    content += line("45", 72, 600) + line("1", 86, 605, 7)
    assert "he quick fox jumps" in read(raw_pdf(content), "a.pdf")


WIDGET = "<</Type/Annot/Subtype/Widget/Rect[{}]/F 4/T({})/FT/{}/V{}>>"


def test_fields_below_captions_before_labels_and_in_cells() -> None:
    content = (
        line("Holder", 72, 700) + line("Account", 250, 700) + line("I agree.", 90, 640) + line("Send it.", 300, 640)
    )
    content += line("Who", 75, 585) + line("Train", 175, 585) + line("Hotel", 275, 585) + line("Ann", 75, 555)
    content += "".join(f"70 {y} m 370 {y} l S\n" for y in (600, 570, 540))
    content += "".join(f"{x} 540 m {x} 600 l S\n" for x in (70, 170, 270, 370))
    fields = [
        WIDGET.format("72 675 200 695", "a", "Tx", "(Berg)"),
        WIDGET.format("250 675 380 695", "b", "Tx", "(9311)"),
        WIDGET.format("72 638 82 648", "c", "Btn", "/Off/AS/Off"),
        WIDGET.format("282 638 292 648", "d", "Btn", "/Yes/AS/Yes"),
        WIDGET.format("275 545 365 565", "e", "Tx", "(120)"),
        "<</Type/Annot/Subtype/Text/Rect[72 500 90 518]/Contents(Too high?)>>",
    ]
    assert read(raw_pdf(content, annotations=fields), "a.pdf").split("\n") == [
        "Holder Berg Account 9311",
        "[ ] I agree. [x] Send it.",
        "Who | Train | Hotel",
        "Who: Ann | Hotel: 120",
        "[Comment: Too high?]",
    ]


def test_fields_notes_and_attachments_of_a_pdf(caplog: pytest.LogCaptureFixture) -> None:
    fields = [
        WIDGET.format("220 695 420 715", "boat", "Tx", "(Morning Heron)"),
        WIDGET.format("220 300 420 315", "Account", "Ch", "(t)/Ff 131072/Opt[[(s)(Sea Bank)][(t)(Tarn Bank)]]"),
        WIDGET.format("220 655 230 665", "power", "Btn", "/Yes/AS/Yes"),
        "<</Type/Annot/Subtype/FreeText/Rect[72 500 300 520]/Contents(Agreed total is 8,450)/DA(0 g)>>",
        "<</Type/Annot/Subtype/FileAttachment/Rect[72 600 80 620]/FS<</Type/Filespec/F(f.txt)/EF<</F 12 0 R>>>>>>",
        "<</Type/EmbeddedFile/Length 9>>stream\nFee is 74\nendstream",
    ]
    data = raw_pdf(line("Name of the boat:", 72, 700) + line("Shore power:", 72, 657), annotations=fields)
    data = data.replace(b"/AcroForm<<", b"/NeedsRendering true/AcroForm<</XFA(x)")
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(data))
    writer.add_annotation(0, FreeText(text="Checked in May", rect=(72, 400, 200, 420)))
    writer.add_attachment("t.csv", b"Name,Bonus\nMoss,930\n")
    stream = io.BytesIO()
    writer.write(stream)
    document = read_document(stream.getvalue(), "a.pdf")
    assert ("its form (XFA) is not in its pages" in document.warnings[0], caplog.text) == (True, "")
    assert document.text == (
        "Name of the boat: Morning Heron\nShore power: [x]\nAgreed total is 8,450\nChecked in May\nAccount: Tarn Bank\n\n"
        "# Attachment: f.txt\n\nFee is 74\n\n# Attachment: t.csv\n\nName | Bonus\nName: Moss | Bonus: 930"
    )


def test_characters_that_do_not_decode() -> None:
    font = (
        "<</Type/Font/Subtype/Type0/BaseFont/ABCDEF+Sub/Encoding/Identity-H/DescendantFonts[<</Type/Font/Subtype/CIDFontType2"
        "/BaseFont/ABCDEF+Sub/CIDSystemInfo<</Registry(Adobe)/Ordering(Identity)/Supplement 0>>/DW 500>>]>>"
    )
    codes = "".join(f"{ord(character) - 29:04x}" for character in "The gate of the mill is painted green")
    message = refusal(raw_pdf(f"BT /F1 12 Tf 72 700 Td <{codes}> Tj ET", font=font), "a.pdf")
    assert message.startswith("a.pdf: the characters of page 1 have no letters in the file; run OCR")
    cmap = (
        "1 begincodespacerange <00> <ff> endcodespacerange\n1 beginbfrange <20> <7d> <0020> endbfrange\n"
        "4 beginbfchar <7e> <0644> <7f> <06440627> <80> <0000> <81> <062e> endbfchar"
    )
    # Lam and alef are a single glyph, and the page is drawn from left to right.
    assert read(raw_pdf("BT /F1 12 Tf 72 700 Td (\\176\\177\\201) Tj ET", to_unicode=cmap), "a.pdf") == "خلال"
    assert read(raw_pdf("BT /F1 12 Tf 72 700 Td (Green gate. \\003\\004\\005) Tj ET", to_unicode=cmap), "a.pdf")
    data = raw_pdf("BT /F1 12 Tf 72 700 Td (The \\200nal of\\200ce su\\200ers shall) Tj ET", to_unicode=cmap)
    document = read_document(data, "a.pdf")
    assert document.text == "The final office sufiers shall"
    assert "page 1" in document.warnings[0]


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("docu-|ment ends", "document ends"),
        ("state-of-the-|art", "state-of-the-art"),
        ("Rent 400,00-|Salary", "Rent 400,00-\nSalary"),
    ],
)
def test_words_divided_at_line_ends(text: str, whole: str) -> None:
    content = "".join(line(part, 72, 700 - 14 * row) for row, part in enumerate(text.split("|")))
    assert read(raw_pdf(content), "a.pdf") == whole
